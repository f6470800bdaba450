"""Drift of signals, and of confidences by feedback."""

import asyncio
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from scipy.stats import binom

from app.calibrators import drift
from app.calibrators.drift import DriftWatch, SignalDrift, SignalReport, promised
from app.certify.drift import DriftTest
from app.core.artifact import Artifact
from app.core.effective_policy import resolve
from app.core.feedback import Asked
from app.core.policy import AskOptions
from app.errors import LogUnavailable, StorageError
from app.offline.refit.choose import Guarantee
from app.storage.folder import checked
from tests.fakes import walks
from tests.fakes.artifacts import a_chat_artifact, an_artifact
from tests.fakes.documents import FakeDocuments
from tests.fakes.records import a_record

DAY = 86_400.0


@dataclass(frozen=True)
class Judged:
    """An answer, when it was asked for, and when its verdict came."""

    answer: Asked
    version: str
    at: float
    verdict_at: float


class Log:
    """Answers in the order of asking; fails while `fail_with` is set."""

    def __init__(self) -> None:
        self.rows: list[Judged] = []
        self.fail_with: Exception | None = None
        # From where on each call read.
        self.positions: list[int] = []

    def judged(
        self,
        *,
        correct: bool,
        times: int = 1,
        version: str = "one",
        key: str | None = None,
        p: float = 0.9,
        at: float = 0.0,
        delay: float = 0.0,
    ) -> None:
        for _ in range(times):
            answer = Asked(len(self.rows) + 1, 0, p, correct, key)
            self.rows.append(Judged(answer, version, at, at + delay))

    async def asked(self, version: str, *, after: int, until: float, wait: float, limit: int) -> Sequence[Asked]:
        await asyncio.sleep(0)
        self.positions.append(after)
        if self.fail_with is not None:
            raise self.fail_with
        return [
            row.answer if row.verdict_at <= row.at + wait else replace(row.answer, correct=None)
            for row in self.rows
            if row.answer.position > after and row.version == version and row.at <= until
        ][:limit]


class World:
    """A watch, what it watches, and what it revoked."""

    def __init__(self, *, revoke: bool = True) -> None:
        self.log = Log()
        self.serving: Artifact | None = an_artifact(version="one")
        self.why: dict[str, str] = {}
        self.documents = FakeDocuments()
        self.watch = self.a_watch(revoke=revoke)

    def a_watch(self, *, revoke: bool = True, tolerance: float = 0.05, wait: float = DAY) -> DriftWatch:
        """Another worker's, say."""
        return DriftWatch(
            self.log.asked,
            lambda: self.serving,
            self.documents,
            tolerance=tolerance,
            delta=0.05,
            wait=wait,
            revoke=self._revoke if revoke else None,
        )

    async def _revoke(self, version: str, why: str) -> None:
        self.why[version] = why


@pytest.fixture
def world() -> World:
    return World()


# Verdicts


async def test_wrong_answers_revoke(world: World) -> None:
    """Judgements that contradict their confidences revoke the version, with the reason in words."""
    world.log.judged(correct=False, times=40)
    await world.watch.refresh()
    assert world.why["one"].startswith("recent confidences exceed the share of right answers by 0.")
    assert "(tolerance 0.05; 40 judged answers, P(false alarm) at most 0.05)" in world.why["one"]


async def test_an_answer_counts_after_the_waiting_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not before, and without a verdict that came later."""
    world.log.judged(correct=False, times=40, at=100.0, delay=DAY)
    world.log.judged(correct=False, times=40, at=100.0, delay=DAY + 1.0)
    monkeypatch.setattr(drift, "now", lambda: DAY + 99.0)
    await world.watch.refresh()
    assert (world.watch.test.seen, world.why) == (0, {})
    monkeypatch.setattr(drift, "now", lambda: DAY + 100.0)
    await world.watch.refresh()
    assert world.watch.test.seen == 40
    assert "one" in world.why
    assert world.watch.test.state.asked == {"": 80}


async def test_any_waiting_time_has_a_document(world: World) -> None:
    """Its name is one that every store takes, also for weeks of waiting."""
    world.log.judged(correct=True)
    await world.a_watch(wait=100 * DAY).refresh()
    (name,) = world.documents.names()
    assert checked(name) == name


async def test_late_confirmations_are_no_drift(monkeypatch: pytest.MonkeyPatch) -> None:
    """Complaints come at once and confirmations within the waiting time: sound calibrators stay in force.

    Whoever counts verdicts as they arrive sees complaints first, and revokes nearly all of them.
    """
    chance = random.Random(52)
    revoked = hasty = streams = 0
    for _ in range(40):
        world, arrivals = World(), []
        for second in range(600):
            p = math.sqrt(chance.random())
            correct = chance.random() < p
            delay = chance.uniform(200.0, 600.0) if correct else 1.0
            world.log.judged(correct=correct, p=p, at=100.0 * second, delay=100.0 * delay)
            arrivals.append((second + delay, world.log.rows[-1].answer))
        for days in range(1, 5):
            monkeypatch.setattr(drift, "now", lambda days=days: days * DAY)
            await world.watch.refresh()
        assert world.watch.test.seen == 600
        by_arrival = DriftTest((0,))
        for _, answer in sorted(arrivals, key=lambda one: one[0]):
            by_arrival.update(answer)
        streams += 1
        revoked += bool(world.why)
        hasty += by_arrival.alarm
    assert revoked <= binom.ppf(0.999, streams, 0.05)
    assert hasty > 0.8 * streams


def test_the_promise_of_the_certificate_is_tested() -> None:
    """Against every fixed k, or the one that the certificate names, with its epsilon."""
    ks, served = an_artifact().ks, an_artifact().policies["graded"]
    for references in (ks, ks[-1:], ks[:1]):
        guarantee = Guarantee(references, 0.02, 0.1)
        certificate = guarantee.certificate(0.02, 0.01, n=100, labels=100, population="questions")
        policy = replace(served, certificate=certificate)
        assert promised(an_artifact(policies={"graded": policy})) == (references, 0.02)
    assert promised(an_artifact(policies={"graded": replace(served, certificate=None)})) == ((), 0.0)


async def test_without_a_calibrator_nothing_is_tested(world: World) -> None:
    """The old one's test is not shown any more."""
    world.log.judged(correct=True, times=10)
    await world.watch.refresh()
    world.serving = None
    await world.watch.refresh()
    assert world.watch.test.seen == 0


async def test_right_answers_do_not(world: World) -> None:
    """Correct confidences change nothing, however many there are; each answer is counted once."""
    for turn in range(1, 4):
        world.log.judged(correct=True, times=150)
        await world.watch.refresh()
        assert world.watch.test.seen == 150 * turn
    assert world.why == {}


async def test_workers_and_restarts_share_one_test(world: World) -> None:
    """Two workers that take turns, and one that starts later, have the same state as one that read everything."""
    chance = random.Random(50)
    other = world.a_watch()
    for _ in range(333):
        world.log.judged(correct=chance.random() < 0.6, key=chance.choice(["a", "b", None]))
        if chance.random() < 0.1:
            await chance.choice([world.watch, other]).refresh()
    await world.watch.refresh()
    await other.refresh()
    world.log.positions.clear()
    restarted = world.a_watch()
    await restarted.refresh()
    assert world.log.positions == [333]
    world.documents.stored.clear()
    alone = world.a_watch()
    await alone.refresh()
    for watch in (world.watch, other, restarted):
        assert watch.test.state == alone.test.state
    assert alone.test.alarm


async def test_a_state_that_cannot_be_used_is_replaced(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Damaged or foreign: the whole log is read again, and the document replaced."""
    world.log.judged(correct=True, times=150)
    await world.watch.refresh()
    ((name, good),) = world.documents.stored.items()
    for bad in (b"", b"{", b"[]", good.replace(b"position", b"place"), good.replace(b'"seen":150', b'"seen":"150"')):
        assert bad != good
        world.documents.stored[name] = bad
        caplog.clear()
        again = world.a_watch()
        await again.refresh()
        assert again.test.seen == 150
        assert "is not the state of a drift test, reading the whole log again" in caplog.text
        assert world.documents.stored[name] == good


async def test_another_tolerance_is_another_test(world: World) -> None:
    """Its state does not serve the old one, nor the other way round."""
    world.log.judged(correct=True, times=10)
    await world.watch.refresh()
    stricter = world.a_watch(revoke=False, tolerance=0.02)
    await stricter.refresh()
    assert stricter.test.seen == 10
    assert len(world.documents.stored) == 2


async def test_a_long_log_is_read_in_parts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """One run reads so many answers and saves its state, so that a start does not wait for the whole log."""
    monkeypatch.setattr(drift, "_AT_ONCE", 2)
    monkeypatch.setattr(drift, "_BATCHES", 3)
    world.log.judged(correct=True, times=10)
    await world.watch.refresh()
    assert world.watch.test.seen == 6
    later = world.a_watch()
    await later.refresh()
    assert later.test.seen == 10


async def test_a_state_that_cannot_be_stored_is_stored_later(world: World) -> None:
    """The new state is used meanwhile, and is written by the next refresh, without new feedback."""
    await world.watch.refresh()
    world.log.judged(correct=False, times=40)
    world.documents.fail_with = StorageError("locked")
    with pytest.raises(StorageError, match="locked"):
        await world.watch.refresh()
    assert "one" in world.why
    world.documents.fail_with = None
    await world.watch.refresh()
    assert world.watch.test.seen == 40
    assert len(world.documents.stored) == 1


async def test_a_new_version_starts_from_nothing(world: World) -> None:
    """A new version starts from zero; the old one's feedback counts again if it comes back."""
    world.log.judged(correct=False, times=40)
    world.log.judged(correct=True, times=40, version="two")
    await world.watch.refresh()
    world.serving = an_artifact(version="two")
    await world.watch.refresh()
    assert (world.watch.test.seen, world.watch.test.alarm) == (40, False)
    assert list(world.why) == ["one"]
    world.serving = an_artifact(version="one")
    await world.watch.refresh()
    assert world.watch.test.alarm


@pytest.mark.parametrize(
    ("revoke", "key", "line"),
    [
        (True, "liar", "drift in the feedback of a single key, nothing is revoked"),
        (False, None, "kept because of FETCHWISE_DRIFT_ACTION=alert"),
    ],
)
async def test_what_is_not_acted_on_is_said_once(
    revoke: bool, key: str | None, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A single key, and an operator who wants to decide, get one line in the log and the metric."""
    world = World(revoke=revoke)
    world.log.judged(correct=False, times=200, key=key)
    world.log.judged(correct=True, times=201, key=key and "others")
    for _ in range(3):
        await world.watch.refresh()
    assert world.why == {}
    assert caplog.text.count(line) == 1
    assert world.watch.test.evidence >= 1.0


async def test_a_log_that_fails_is_read_on(world: World) -> None:
    """What was read before a failure is not read twice."""
    world.log.judged(correct=False, times=3)
    await world.watch.refresh()
    world.log.fail_with = LogUnavailable("locked")
    world.log.judged(correct=False, times=37)
    with pytest.raises(LogUnavailable):
        await world.watch.refresh()
    world.log.fail_with = None
    await world.watch.refresh()
    assert world.watch.test.seen == 40
    assert "one" in world.why


# Signals


def fed(watched: SignalDrift, *, shift: float, times: int, version: str = "one", **changes: Any) -> None:
    """Let answers pass whose log-probability is uniform on [-1, 0], shifted."""
    chance = random.Random(51)
    for _ in range(times):
        signals = {"seq_logprob": chance.random() - 1.0 + shift}
        watched.observe(a_record(calibrator=version, signals=signals, **changes))


def uniform(**changes: Any) -> Artifact:
    """An artifact that was fitted on such answers."""
    quantiles = {"k0.seq_logprob": tuple(number / 10 - 1.0 for number in range(1, 10)), "k0.margin": (1.0, 2.0)}
    return an_artifact(**({"version": "one", "quantiles": quantiles} | changes))


def test_the_same_traffic_is_stable() -> None:
    """Far below the limit, from 200 questions on; the mean confidence is the estimated accuracy."""
    watched = SignalDrift(uniform)
    assert watched.report() == SignalReport()
    fed(watched, shift=0.0, times=199, confidence=0.75)
    assert watched.report().signals == {}
    fed(watched, shift=0.0, times=801, confidence=0.75)
    seen = watched.report()
    assert list(seen.signals) == ["k0.seq_logprob"]
    assert seen.signals["k0.seq_logprob"].index < 0.05 < seen.signals["k0.seq_logprob"].limit
    assert seen.accuracy == pytest.approx(0.75)


def test_other_traffic_is_not() -> None:
    """Shifted signals exceed the limit until they have left the window."""
    watched = SignalDrift(uniform, window=400)
    fed(watched, shift=0.4, times=400)
    moved = watched.report().signals["k0.seq_logprob"]
    assert moved.index > moved.limit
    fed(watched, shift=0.0, times=400)
    back = watched.report().signals["k0.seq_logprob"]
    assert back.index < back.limit


def test_turns_of_chats_have_no_confidence_to_estimate_accuracy_by() -> None:
    """Of their evidence that of the first purchase counts: the search, which every answer after a search has alike."""
    quantiles = {"search.cosine": tuple(number / 10 for number in range(1, 10))}
    artifact = a_chat_artifact(version="one", quantiles=quantiles)
    watched, chance = SignalDrift(lambda: artifact), random.Random(52)
    policy = resolve(AskOptions(), artifact, ks=artifact.ks, chat=True)
    done = walks.walk(policy, walks.World({0: {"seq_logprob": -0.5}}))
    for _ in range(400):
        evidence = {**done.available.evidence, "search.cosine": chance.random()}
        available = replace(done.available, evidence=evidence)
        record = replace(a_record(), policy=done.policy, steps=done.steps, available=available, reply=done.reply)
        watched.observe(record)
    seen = watched.report()
    assert seen.signals["search.cosine"].index < seen.signals["search.cosine"].limit
    assert seen.accuracy is None


def test_a_new_calibrator_starts_from_nothing() -> None:
    """Counts belong to one version; answers under another, or under none, are ignored."""
    serving = [uniform()]
    watched = SignalDrift(lambda: serving[-1])
    fed(watched, shift=0.4, times=300)
    serving.append(uniform(version="two"))
    fed(watched, shift=0.0, times=300, version="two")
    fed(watched, shift=0.4, times=300, version="one")
    watched.observe(a_record(calibrator=None, signals={"seq_logprob": -0.5}))
    seen = watched.report().signals["k0.seq_logprob"]
    assert seen.index < 0.1
    empty = SignalDrift(lambda: None)
    fed(empty, shift=0.0, times=300)
    assert empty.report() == SignalReport()


def test_only_evidence_with_quantiles_is_watched() -> None:
    """Evidence without quantiles or with a single value is not."""
    artifact = uniform(quantiles={"k0.seq_logprob": (-0.5,), "k0.margin": (1.0, 1.0), "k0.neg_entropy": (-1.0,)})
    watched = SignalDrift(lambda: artifact)
    for _ in range(200):
        watched.observe(a_record(calibrator="one", signals={"seq_logprob": -0.5, "margin": 1.0, "seq_logprob@1": -0.5}))
    assert list(watched.report().signals) == ["k0.seq_logprob"]


def test_evidence_that_was_bought_for_some_questions_is_not_compared() -> None:
    """Answers from passages exist for the harder questions only, unless k was drawn at random."""
    deciles = tuple(number / 10 - 1.0 for number in range(1, 10))
    watched = SignalDrift(lambda: uniform(quantiles={"k0.seq_logprob": deciles, "k1.seq_logprob": deciles}))
    fed(watched, shift=0.0, times=300, read_signals={"seq_logprob": -0.9})
    assert list(watched.report().signals) == ["k0.seq_logprob"]
    fed(watched, shift=0.0, times=300, read_signals={"seq_logprob": -0.9}, explored=True)
    assert list(watched.report().signals) == ["k0.seq_logprob", "k1.seq_logprob"]


def test_withheld_answers_have_no_part_in_the_accuracy() -> None:
    """The estimate is about answers that were given, with a confidence."""
    watched = SignalDrift(uniform)
    watched.observe(a_record(calibrator="one", confidence=0.9))
    watched.observe(a_record(calibrator="one", confidence=0.1, answer=None))
    watched.observe(a_record(calibrator="one", confidence=None))
    assert watched.report().accuracy == pytest.approx(0.9)
