"""Readiness: what it says about a snapshot."""

from dataclasses import replace

import pytest

from app.api.status import STALE_S, Readiness
from app.core.artifact import CalibratorStatus
from app.core.effective_policy import EffectivePolicy
from app.telemetry.snapshot import Part
from tests.fakes.snapshots import POLICY, a_snapshot

UP, DOWN = Part(up=True), Part(up=False, remark="no connection to 10.0.0.7")
PARTIAL = Part(up=True, remark="1 of 2 readers answer")


CALIBRATED = replace(POLICY, heads={"k0": {}})


@pytest.mark.parametrize(
    ("down", "policy", "state"),
    [
        (set(), POLICY, "ready"),
        ({"reader"}, CALIBRATED, "down"),
        ({"vectors"}, CALIBRATED, "degraded"),
        ({"embedder"}, CALIBRATED, "degraded"),
        ({"embedder", "vectors"}, CALIBRATED, "degraded"),
        ({"vectors"}, POLICY, "down"),
        ({"embedder"}, POLICY, "down"),
    ],
)
def test_ready_if_a_question_can_be_answered(down: set[str], policy: EffectivePolicy, state: str) -> None:
    """The reader is needed, and either the heads of a calibrator or a search."""
    parts = {name: DOWN if name in down else UP for name in ("reader", "embedder", "vectors")}
    snapshot = a_snapshot(parts=parts, policy=policy)
    found = Readiness.of(snapshot, now=snapshot.pinged_at, details=True)
    assert (found.state, found.ready) == (state, state != "down")


def test_keys_that_were_never_read_are_not_ready() -> None:
    """Nobody could be let in."""
    snapshot = a_snapshot(parts={"reader": UP, "keys": DOWN}, policy=CALIBRATED)
    assert Readiness.of(snapshot, now=snapshot.pinged_at, details=True).state == "down"


def test_draining_is_not_ready() -> None:
    """Whatever the upstreams do."""
    snapshot = a_snapshot(policy=CALIBRATED)
    found = Readiness.of(snapshot, now=snapshot.pinged_at, details=True, draining=True)
    assert (found.state, found.ready) == ("draining", False)


@pytest.mark.parametrize(
    ("reader", "details", "state", "text"),
    [
        (UP, True, "ready", "ok"),
        (PARTIAL, True, "degraded", "ok, but 1 of 2 readers answer"),
        (PARTIAL, False, "degraded", "ok"),
        (DOWN, True, "down", "no connection to 10.0.0.7"),
        (DOWN, False, "down", "not ready"),
    ],
)
def test_remarks_are_details(reader: Part, details: bool, state: str, text: str) -> None:
    """Everyone sees the state; the remark of an upstream may name an address."""
    snapshot = a_snapshot(parts={"reader": reader}, policy=CALIBRATED)
    found = Readiness.of(snapshot, now=snapshot.pinged_at, details=details)
    assert (found.state, found.upstreams) == (state, {"reader": text})


@pytest.mark.parametrize(("age", "ready"), [(STALE_S, True), (STALE_S + 2, False)])
def test_a_snapshot_that_is_too_old_is_not_ready(age: float, ready: bool) -> None:
    """The state of upstreams that have not been pinged for long is unknown."""
    snapshot = a_snapshot(parts={"reader": UP}, policy=CALIBRATED)
    found = Readiness.of(snapshot, now=snapshot.pinged_at + age, details=False)
    assert found.ready is ready
    assert found.upstreams["reader"].startswith("ok" if ready else "not pinged for 17 s")


def test_the_calibrators_problem_is_a_detail() -> None:
    """The text may name a folder, so it is hidden; that there is a problem is public."""
    status = CalibratorStatus(None, certified=False, matches=False, problem="no calibrator in /srv", fallback_k=5)
    snapshot = replace(a_snapshot(), calibrator=status)
    shown, brief = (Readiness.of(snapshot, now=snapshot.pinged_at, details=details) for details in (True, False))
    assert shown.calibrator.problem == "no calibrator in /srv"
    assert brief.calibrator.problem == "shown to keys with scope `operate`"
