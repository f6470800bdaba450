"""Prometheus as an observer: what one record adds to which sample."""

from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from app.decision.policy import Action, Policy, Reason, Retrieval
from app.decision.record import Citation, DecisionRecord, Timings, Usage
from app.observers.prometheus import PrometheusObserver, TrafficMetrics

RECORD = DecisionRecord(
    id="0123",
    question="Who?",
    collection="demo",
    policy=Policy.GRADED,
    retrieval=Retrieval.AUTO,
    abstain=True,
    filtered=False,
    answer="She",
    action=Action.K1,
    k=1,
    reason=Reason.BORDERLINE,
    confidence=0.75,
    p_closed_book=0.625,
    signals={},
    read_signals={},
    thresholds=None,
    tau_abstain=None,
    calibrator=None,
    certified=False,
    timings=Timings(total=620.0, probe=200.0, embed=15.0, search=5.0, read=400.0),
    citations=(Citation(1, "p1", "She", "It was she.", 0.5),),
    probe_usage=Usage(40, 8),
    read_usage=Usage(120, 9),
    retrieval_calls=1,
)


class Observed:
    """An observer with a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.traffic = TrafficMetrics(self.registry)
        self.observer = PrometheusObserver(self.registry, self.traffic)

    def value(self, name: str, **labels: str) -> float | None:
        """One sample, None where it was never touched."""
        return self.registry.get_sample_value(f"fetchwise_{name}", labels)


@pytest.fixture
def observed() -> Observed:
    """A fresh observer."""
    return Observed()


def test_one_record(observed: Observed) -> None:
    """Each part of a record lands in its own sample, in base units."""
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
    assert value("passages_total", k="1") == 1
    assert value("retrieval_calls_total", use="used") == 1
    assert value("retrieval_calls_total", use="wasted") is None
    assert value("p_closed_book_sum") == 0.625
    assert value("p_closed_book_bucket", le="0.6") == 0
    assert value("p_closed_book_bucket", le="0.7") == 1


def test_what_did_not_happen_is_not_counted(observed: Observed) -> None:
    """A closed-book answer leaves no reading, no search, and no probability where none was told."""
    timings = Timings(total=200.0, probe=200.0)
    observed.observer.observe(
        replace(
            RECORD,
            k=0,
            action=Action.K0,
            timings=timings,
            citations=(),
            read_usage=None,
            retrieval_calls=0,
            p_closed_book=None,
        )
    )
    assert observed.value("stage_duration_seconds_count", stage="probe", k="0") == 1
    assert observed.value("stage_duration_seconds_count", stage="read", k="0") is None
    assert observed.value("tokens_total", stage="read", kind="prompt", k="0") is None
    assert observed.value("passages_total", k="0") is None
    assert observed.value("p_closed_book_count") == 0


def test_a_stage_that_took_no_time_did_run(observed: Observed) -> None:
    """Zero milliseconds is a measurement; absence is not."""
    observed.observer.observe(replace(RECORD, timings=Timings(total=0.0, probe=0.0)))
    assert observed.value("stage_duration_seconds_count", stage="probe", k="1") == 1


def test_a_withheld_answer_counts_by_what_was_read(observed: Observed) -> None:
    """An abstention after five passages is an abstention with k=5."""
    observed.observer.observe(replace(RECORD, action=Action.ABSTAIN, k=5, answer=None, reason=Reason.LOW_CONFIDENCE))
    assert observed.value("requests_total", action="abstain", k="5", reason="low_confidence") == 1
    assert observed.value("request_duration_seconds_count", action="abstain", k="5") == 1


def test_a_search_in_vain_is_wasted(observed: Observed) -> None:
    """A search whose passages nobody read is wasted, and the part that failed is counted."""
    failed = replace(
        RECORD, k=0, action=Action.K0, reason=Reason.RETRIEVAL_FAILED, citations=(), failure=("vectors", "timeout")
    )
    observed.observer.observe(failed)
    assert observed.value("retrieval_calls_total", use="wasted") == 1
    assert observed.value("upstream_errors_total", upstream="vectors", kind="timeout") == 1


def test_records_add_up(observed: Observed) -> None:
    """Ten records are ten times one."""
    for _ in range(10):
        observed.observer.observe(RECORD)
    assert observed.value("requests_total", action="k1", k="1", reason="borderline") == 10
    assert observed.value("tokens_total", stage="read", kind="prompt", k="1") == 1200


def test_traffic(observed: Observed) -> None:
    """Work under way goes up and down, work refused only up."""
    observed.traffic.began()
    observed.traffic.began()
    observed.traffic.ended()
    observed.traffic.shed()
    assert (observed.value("in_flight"), observed.value("shed_total")) == (1, 1)


def test_the_calibrator_in_force(observed: Observed) -> None:
    """One calibrator is in force at a time; none is called `none`."""
    observed.traffic.calibrator("2026-01-31-0a1b2c3d", certified=True)
    observed.traffic.calibrator(None, certified=False)
    assert observed.value("calibrator_info", version="none", certified="false") == 1
    assert observed.value("calibrator_info", version="2026-01-31-0a1b2c3d", certified="true") is None
