"""Prometheus as an observer: which samples one record changes."""

from contextlib import suppress
from dataclasses import replace
from itertools import product

import pytest
from prometheus_client import CollectorRegistry

from app.answer.answer import Answerer
from app.answer.run import Upstreams
from app.core.available import Answer, Usage
from app.core.policy import AskOptions, Policy, Reason, Retrieval
from app.core.question import Question
from app.core.record import Timings
from app.errors import UpstreamTimeout
from app.telemetry.decisions import PrometheusObserver
from app.telemetry.gauges import TrafficMetrics
from tests.fakes.artifacts import a_fit, an_artifact, an_uncertified_fit
from tests.fakes.embedder import FakeEmbedder
from tests.fakes.gateway import filled
from tests.fakes.reader import FakeReader
from tests.fakes.records import a_record
from tests.fakes.retriever import FakeRetriever
from tests.fakes.walks import fixed

RECORD = a_record()


class Observed:
    """An observer with its own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.traffic = TrafficMetrics(self.registry)
        self.observer = PrometheusObserver(self.registry, self.traffic, (0, 1, 5))

    def value(self, name: str, **labels: str) -> float | None:
        """One sample, or None if it does not exist."""
        return self.registry.get_sample_value(f"fetchwise_{name}", labels)


@pytest.fixture
def observed() -> Observed:
    """A new observer."""
    return Observed()


def test_one_record(observed: Observed) -> None:
    """Each part of a record changes its own sample, in base units."""
    observed.observer.observe(RECORD)
    value = observed.value
    assert value("requests_total", action="k1", k="1", reason="borderline") == 1
    assert value("request_duration_seconds_sum", action="k1", k="1") == pytest.approx(0.62)
    for stage, seconds in {"probe": 0.2, "embed": 0.015, "search": 0.005, "read": 0.4}.items():
        assert value("stage_duration_seconds_sum", stage=stage, k="1") == pytest.approx(seconds)
    assert value("tokens_total", stage="probe", kind="prompt", k="1") == 40
    assert value("tokens_total", stage="probe", kind="completion", k="1") == 8
    assert value("tokens_total", stage="read", kind="prompt", k="1") == 120
    assert value("tokens_total", stage="read", kind="completion", k="1") == 9
    assert value("passages_read_total", k="1") == 1
    assert value("searches_total", use="read") == 1
    assert value("searches_total", use="unread") == 0
    assert [value("gated_total", k=k) for k in ("0", "1", "5")] == [0, 1, 0]
    assert value("p_closed_book_sum") == 0.625
    assert value("p_closed_book_bucket", le="0.6") == 0
    assert value("p_closed_book_bucket", le="0.7") == 1


def test_stages_that_did_not_run_are_not_counted(observed: Observed) -> None:
    """A closed-book answer counts no reading and no search, and no probability if none was predicted."""
    timings = Timings(total=200.0, probe=200.0)
    observed.observer.observe(
        a_record(k=0, timings=timings, citations=(), read_usage=None, searches=0, p_closed_book=None)
    )
    assert observed.value("stage_duration_seconds_count", stage="probe", k="0") == 1
    assert observed.value("stage_duration_seconds_count", stage="read", k="0") == 0
    assert observed.value("tokens_total", stage="read", kind="prompt", k="1") == 0
    assert observed.value("passages_read_total", k="1") == 0
    assert observed.value("p_closed_book_count") == 0


def test_stage_of_zero_milliseconds_is_counted(observed: Observed) -> None:
    """Zero milliseconds is a measurement; absence is not."""
    observed.observer.observe(a_record(timings=Timings(total=0.0, probe=0.0)))
    assert observed.value("stage_duration_seconds_count", stage="probe", k="1") == 1


def test_withheld_answer_is_counted_by_passages_read(observed: Observed) -> None:
    """An abstention after five passages is an abstention with k=5."""
    observed.observer.observe(a_record(k=5, answer=None, reason=Reason.LOW_CONFIDENCE))
    assert observed.value("requests_total", action="abstain", k="5", reason="low_confidence") == 1
    assert observed.value("request_duration_seconds_count", action="abstain", k="5") == 1


def test_search_without_reading_is_counted_as_unread(observed: Observed) -> None:
    """A search whose passages were not read is counted as such, and the upstream that failed is counted."""
    failed = a_record(k=0, reason=Reason.RETRIEVAL_FAILED, citations=(), failure=("vectors", "timeout"))
    observed.observer.observe(failed)
    assert observed.value("searches_total", use="unread") == 1
    assert observed.value("upstream_errors_total", upstream="vectors", kind="timeout") == 1


def test_every_reading_of_a_ladder_is_counted(observed: Observed) -> None:
    """Passages as often as they were read; gated by the largest k, though the closed-book answer is given."""
    record = a_record(k=5, truncated=True)
    answers = {**record.available.answers, 1: Answer(1, "She", {}, Usage(100, 3), passages_read=1)}
    available = replace(record.available, answers=answers)
    observed.observer.observe(replace(record, available=available, reply=replace(record.reply, k=0)))
    assert observed.value("passages_read_total", k="0") == 2
    assert observed.value("tokens_total", stage="read", kind="prompt", k="0") == 220
    assert observed.value("gated_total", k="5") == 1
    assert observed.value("truncated_total", k="0") == 1
    assert observed.value("searches_total", use="read") == 1


def test_question_that_the_gate_did_not_decide_is_not_gated(observed: Observed) -> None:
    """A question whose caller requires passages does not count as gated."""
    observed.observer.observe(a_record(retrieval=Retrieval.REQUIRED, reason=Reason.RETRIEVAL_REQUIRED))
    assert observed.value("gated_total", k="1") == 0


def samples(registry: CollectorRegistry) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    """Every sample of a counter, by name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items())))
        for family in registry.collect()
        if family.type == "counter"
        for sample in family.samples
        if sample.name.endswith("_total")
    }


async def test_every_counter_exists_before_its_first_increment(observed: Observed) -> None:
    """No question adds a counter that did not start at zero: a rate would miss its first step."""
    before = samples(observed.registry)
    assert ("fetchwise_requests_total", (("action", "k0"), ("k", "0"), ("reason", "confident"))) in before
    reader, embedder, vectors = FakeReader(), FakeEmbedder(), FakeRetriever()
    await filled(vectors, embedder)
    artifact = an_artifact(policies={"graded": a_fit(), "binary": an_uncertified_fit(0.625, 0.625)})
    failure = UpstreamTimeout("vectors", "too slow")
    for calibrated, policy, retrieval, sure, read_sure, broken in product(
        (artifact, None), Policy, Retrieval, (0.0, 0.6, 0.9), (0.1, 0.9), (False, True)
    ):
        if (policy, retrieval) in {(Policy.ALWAYS, Retrieval.FORBIDDEN), (Policy.NEVER, Retrieval.REQUIRED)}:
            continue
        reader.says("Who?", "She", k=0, sure=sure)
        reader.says("Who?", "She", sure=read_sure)
        vectors.fail_with = failure if broken else None
        answerer = Answerer(Upstreams(reader, embedder, vectors), fixed(calibrated), observers=(observed.observer,))
        with suppress(UpstreamTimeout):
            await answerer.answer(Question("id", "Who?", "demo", 24, AskOptions(policy, retrieval)))
    assert samples(observed.registry) == before
