"""The circuit breaker: when it opens, which calls pass, and which results it ignores."""

import asyncio
import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from app.errors import UpstreamTimeout, UpstreamUnavailable
from app.upstream.resilience import Breaker

FAILURE = UpstreamTimeout("reader", "the reader did not answer in time")
RETRY_S = 10.0


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Call:
    """A call in progress that the test ends."""

    def __init__(self, breaker: Breaker) -> None:
        self._watched = breaker.watching()
        self._watched.__enter__()

    def succeeded(self) -> None:
        self._watched.__exit__(None, None, None)

    def failed(self) -> None:
        self._watched.__exit__(type(FAILURE), FAILURE, None)

    def cancelled(self) -> None:
        gone = asyncio.CancelledError()
        self._watched.__exit__(type(gone), gone, None)


def a_breaker(clock: Clock, *, failures: int = 3) -> Breaker:
    return Breaker("reader", failures=failures, retry_s=RETRY_S, clock=clock, rng=random.Random(7))


def opened(clock: Clock, *, failures: int = 3) -> Breaker:
    breaker = a_breaker(clock, failures=failures)
    for _ in range(failures):
        Call(breaker).failed()
    assert breaker.open
    return breaker


def due(clock: Clock) -> Breaker:
    breaker = opened(clock)
    clock.now += breaker.wait_s
    return breaker


def test_breaker_opens_after_failures_and_says_when_the_next_trial_is() -> None:
    """The refusal says how many calls failed and how long to wait, in the message and in whole seconds."""
    clock = Clock()
    breaker = opened(clock)
    with pytest.raises(UpstreamUnavailable, match=r"3 of its last 6 calls failed; next trial in \d+ s") as refused:
        Call(breaker)
    assert refused.value.upstream == "reader"
    assert refused.value.retry_after_s is not None
    assert RETRY_S <= refused.value.retry_after_s <= 1.5 * RETRY_S


def test_half_of_the_calls_failing_opens_the_breaker_and_a_third_does_not() -> None:
    """An upstream that fails occasionally is still called."""
    breaker = a_breaker(Clock())
    for call in range(300):
        Call(breaker).failed() if call % 3 == 0 else Call(breaker).succeeded()
    assert not breaker.open
    for _ in range(3):
        Call(breaker).succeeded()
        Call(breaker).failed()
    assert breaker.open


@pytest.mark.parametrize("end", ["succeeded", "failed", "cancelled"])
def test_open_breaker_lets_one_trial_call_through_at_a_time(end: str) -> None:
    """After the pause, success closes the breaker, failure starts another pause, a cancelled trial frees the slot."""
    breaker = due(Clock())
    trial = Call(breaker)
    with pytest.raises(UpstreamUnavailable, match="a trial is running"):
        Call(breaker)
    getattr(trial, end)()
    assert breaker.open is (end != "succeeded")
    assert breaker.due is (end == "cancelled")
    assert breaker.wait_s >= (RETRY_S if end == "failed" else 0)


def test_successful_trial_resets_the_failure_count() -> None:
    """It takes as many failures as before to open the breaker again."""
    breaker = due(Clock())
    Call(breaker).succeeded()
    for _ in range(2):
        Call(breaker).failed()
    assert not breaker.open


def test_calls_from_before_a_state_change_are_ignored() -> None:
    """A late failure does not open the breaker, a late success does not close it, and neither ends another's trial."""
    clock = Clock()
    breaker = a_breaker(clock)
    late = [Call(breaker) for _ in range(10)]
    for _ in range(3):
        Call(breaker).failed()
    late.pop().succeeded()
    assert breaker.open
    clock.now += breaker.wait_s
    trial = Call(breaker)
    late.pop().cancelled()
    with pytest.raises(UpstreamUnavailable):
        Call(breaker)
    trial.succeeded()
    for call in late:
        call.failed()
    assert not breaker.open


@settings(stateful_step_count=50)
class AnyTraffic(RuleBasedStateMachine):
    """The rules hold for any sequence of calls and results."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.changes: list[bool] = []
        self.breaker = Breaker(
            "reader",
            failures=3,
            retry_s=RETRY_S,
            clock=self.clock,
            rng=random.Random(1),
            on_change=lambda: self.changes.append(self.breaker.open),
        )
        self.ordinary: list[Call] = []
        self.trial: Call | None = None
        self.opened_at = 0.0

    @rule()
    def begin(self) -> None:
        was_open = self.breaker.open
        may = not was_open or (self.trial is None and self.breaker.wait_s == 0)
        assert was_open is False or self.breaker.due is may
        if not may:
            with pytest.raises(UpstreamUnavailable) as refused:
                Call(self.breaker)
            assert 1 <= (refused.value.retry_after_s or 0) <= 1.5 * RETRY_S
            return
        call = Call(self.breaker)
        if was_open:
            assert self.clock.now - self.opened_at >= RETRY_S
            self.trial = call
        else:
            self.ordinary.append(call)

    @precondition(lambda self: self.ordinary)
    @rule(data=st.data(), end=st.sampled_from(["succeeded", "failed", "cancelled"]))
    def end_ordinary(self, data: st.DataObject, end: str) -> None:
        call = self.ordinary.pop(data.draw(st.integers(0, len(self.ordinary) - 1)))
        was_open, waited = self.breaker.open, self.breaker.wait_s
        self.end(call, end)
        if was_open:
            assert self.breaker.open
            assert self.breaker.wait_s == waited
        elif end != "failed":
            assert not self.breaker.open

    @precondition(lambda self: self.trial is not None)
    @rule(end=st.sampled_from(["succeeded", "failed", "cancelled"]))
    def end_trial(self, end: str) -> None:
        assert self.trial is not None
        call, self.trial = self.trial, None
        self.end(call, end)
        assert self.breaker.open is (end != "succeeded")

    @rule(seconds=st.sampled_from([1.0, RETRY_S, 2 * RETRY_S]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @invariant()
    def the_state_was_reported(self) -> None:
        assert (self.changes[-1] if self.changes else False) is self.breaker.open
        assert self.breaker.wait_s <= 1.5 * RETRY_S

    def end(self, call: Call, end: str) -> None:
        changes = len(self.changes)
        getattr(call, end)()
        if len(self.changes) > changes and self.breaker.open:
            self.opened_at = self.clock.now


TestAnyTraffic = AnyTraffic.TestCase
