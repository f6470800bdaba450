"""Drift of signals, and of confidences by feedback."""

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest

from app.calibrators.drift import DriftWatch, SignalDrift, SignalReport
from app.core.artifact import Artifact
from app.core.feedback import Solicited
from app.errors import LogUnavailable, StorageError
from tests.fakes.artifacts import an_artifact
from tests.fakes.documents import FakeDocuments
from tests.fakes.records import a_record


class Log:
    """Judgements in the order in which they were given; fails while `fail_with` is set."""

    def __init__(self) -> None:
        self.rows: list[Solicited] = []
        self.fail_with: Exception | None = None
        # From where on each call read.
        self.positions: list[int] = []

    def judged(self, *, correct: bool, times: int = 1, version: str = "one", key: str | None = None) -> None:
        for _ in range(times):
            self.rows.append(Solicited(len(self.rows) + 1, 0.9, correct, key, version))

    async def solicited(self, version: str, *, after: int, limit: int) -> Sequence[Solicited]:
        await asyncio.sleep(0)
        self.positions.append(after)
        if self.fail_with is not None:
            raise self.fail_with
        return [row for row in self.rows if row.position > after and row.version == version][:limit]


class World:
    """A watch, what it watches, and what it revoked."""

    def __init__(self, *, revoke: bool = True) -> None:
        self.log = Log()
        self.serving: Artifact | None = an_artifact(version="one")
        self.why: dict[str, str] = {}
        self.documents = FakeDocuments()
        self.watch = self.a_watch(revoke=revoke)

    def a_watch(self, *, revoke: bool = True) -> DriftWatch:
        """Another worker's, say."""
        return DriftWatch(
            self.log.solicited,
            lambda: self.serving,
            self.documents,
            tolerance=0.05,
            delta=0.05,
            revoke=self._revoke if revoke else None,
        )

    async def _revoke(self, version: str, why: str) -> None:
        self.why[version] = why


@pytest.fixture
def world() -> World:
    return World()


# Judgements


async def test_wrong_answers_revoke(world: World) -> None:
    """Judgements that contradict their confidences revoke the version, with the reason in words."""
    world.log.judged(correct=False, times=40)
    await world.watch.refresh()
    assert world.why["one"].startswith("recent confidences exceed the share of right answers by 0.")
    assert "(tolerance 0.05; 40 judged answers, P(false alarm) at most 0.05)" in world.why["one"]


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
        assert (watch.test.everyone, watch.test.without) == (alone.test.everyone, alone.test.without)
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
    stricter = DriftWatch(
        world.log.solicited, lambda: world.serving, world.documents, tolerance=0.02, delta=0.05, revoke=None
    )
    await stricter.refresh()
    assert stricter.test.seen == 10
    assert len(world.documents.stored) == 2


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


def fed(drift: SignalDrift, *, shift: float, times: int, version: str = "one", **changes: Any) -> None:
    """Let answers pass whose log-probability is uniform on [-1, 0], shifted."""
    chance = random.Random(51)
    for _ in range(times):
        signals = {"seq_logprob": chance.random() - 1.0 + shift}
        drift.observe(a_record(calibrator=version, signals=signals, **changes))


def uniform(**changes: Any) -> Artifact:
    """An artifact that was fitted on such answers."""
    quantiles = {"k0.seq_logprob": tuple(number / 10 - 1.0 for number in range(1, 10)), "k0.margin": (1.0, 2.0)}
    return an_artifact(**({"version": "one", "quantiles": quantiles} | changes))


def test_the_same_traffic_is_stable() -> None:
    """Far below the limit, from 200 questions on; the mean confidence is the estimated accuracy."""
    drift = SignalDrift(uniform)
    assert drift.report() == SignalReport()
    fed(drift, shift=0.0, times=199, confidence=0.75)
    assert drift.report().signals == {}
    fed(drift, shift=0.0, times=801, confidence=0.75)
    seen = drift.report()
    assert list(seen.signals) == ["k0.seq_logprob"]
    assert seen.signals["k0.seq_logprob"].index < 0.05 < seen.signals["k0.seq_logprob"].limit
    assert seen.accuracy == pytest.approx(0.75)


def test_other_traffic_is_not() -> None:
    """Shifted signals exceed the limit until they have left the window."""
    drift = SignalDrift(uniform, window=400)
    fed(drift, shift=0.4, times=400)
    moved = drift.report().signals["k0.seq_logprob"]
    assert moved.index > moved.limit
    fed(drift, shift=0.0, times=400)
    back = drift.report().signals["k0.seq_logprob"]
    assert back.index < back.limit


def test_a_new_calibrator_starts_from_nothing() -> None:
    """Counts belong to one version; answers under another, or under none, are ignored."""
    serving = [uniform()]
    drift = SignalDrift(lambda: serving[-1])
    fed(drift, shift=0.4, times=300)
    serving.append(uniform(version="two"))
    fed(drift, shift=0.0, times=300, version="two")
    fed(drift, shift=0.4, times=300, version="one")
    drift.observe(a_record(calibrator=None, signals={"seq_logprob": -0.5}))
    seen = drift.report().signals["k0.seq_logprob"]
    assert seen.index < 0.1
    empty = SignalDrift(lambda: None)
    fed(empty, shift=0.0, times=300)
    assert empty.report() == SignalReport()


def test_only_evidence_with_quantiles_is_watched() -> None:
    """Evidence without quantiles or with a single value is not."""
    artifact = uniform(quantiles={"k0.seq_logprob": (-0.5,), "k0.margin": (1.0, 1.0), "k0.neg_entropy": (-1.0,)})
    drift = SignalDrift(lambda: artifact)
    for _ in range(200):
        drift.observe(a_record(calibrator="one", signals={"seq_logprob": -0.5, "margin": 1.0, "seq_logprob@1": -0.5}))
    assert list(drift.report().signals) == ["k0.seq_logprob"]


def test_evidence_that_was_bought_for_some_questions_is_not_compared() -> None:
    """Answers from passages exist for the harder questions only, unless k was drawn at random."""
    deciles = tuple(number / 10 - 1.0 for number in range(1, 10))
    drift = SignalDrift(lambda: uniform(quantiles={"k0.seq_logprob": deciles, "k1.seq_logprob": deciles}))
    fed(drift, shift=0.0, times=300, read_signals={"seq_logprob": -0.9})
    assert list(drift.report().signals) == ["k0.seq_logprob"]
    fed(drift, shift=0.0, times=300, read_signals={"seq_logprob": -0.9}, explored=True)
    assert list(drift.report().signals) == ["k0.seq_logprob", "k1.seq_logprob"]


def test_withheld_answers_have_no_part_in_the_accuracy() -> None:
    """The estimate is about answers that were given, with a confidence."""
    drift = SignalDrift(uniform)
    drift.observe(a_record(calibrator="one", confidence=0.9))
    drift.observe(a_record(calibrator="one", confidence=0.1, answer=None))
    drift.observe(a_record(calibrator="one", confidence=None))
    assert drift.report().accuracy == pytest.approx(0.9)
