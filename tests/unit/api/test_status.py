"""Readiness: what it says about a snapshot."""

from dataclasses import replace

import pytest

from app.api.status import STALE_S, Readiness
from app.core.artifact import CalibratorStatus
from app.telemetry.snapshot import Part
from tests.fakes.snapshots import a_snapshot

UP, DOWN = Part(up=True), Part(up=False, remark="no connection to 10.0.0.7")
PARTIAL = Part(up=True, remark="1 of 2 readers answer")


@pytest.mark.parametrize(
    ("vectors", "details", "ready", "text"),
    [
        (UP, True, True, "ok"),
        (PARTIAL, True, True, "ok, but 1 of 2 readers answer"),
        (PARTIAL, False, True, "ok"),
        (DOWN, True, False, "no connection to 10.0.0.7"),
        (DOWN, False, False, "not ready"),
    ],
)
def test_the_gateway_is_ready_if_every_part_is_up(vectors: Part, details: bool, ready: bool, text: str) -> None:
    """An upstream that is up may have a remark, which is a detail."""
    snapshot = a_snapshot(parts={"reader": UP, "vectors": vectors})
    found = Readiness.of(snapshot, now=snapshot.pinged_at, details=details)
    assert (found.ready, found.upstreams) == (ready, {"reader": "ok", "vectors": text})


@pytest.mark.parametrize(("age", "ready"), [(STALE_S, True), (STALE_S + 2, False)])
def test_a_snapshot_that_is_too_old_is_not_ready(age: float, ready: bool) -> None:
    """The state of upstreams that have not been pinged for long is unknown."""
    snapshot = a_snapshot(parts={"reader": UP})
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
