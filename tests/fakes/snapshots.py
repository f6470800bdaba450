"""A snapshot of a healthy gateway."""

from dataclasses import replace
from typing import Any

from app.calibrators.drift import SignalReport
from app.core.artifact import CalibratorStatus
from app.core.cost import Objective
from app.core.effective_policy import EffectivePolicy, Fixed
from app.core.policy import DEFAULT_KS, Reason
from app.economics.bypass import BypassReport
from app.telemetry.snapshot import Load, Part, Snapshot

SERVING = CalibratorStatus("v1", certified=True, matches=True, problem="", fallback_k=1)
POLICY = EffectivePolicy(DEFAULT_KS, Fixed(5, Reason.NOT_CALIBRATED), minimum=0, maximum=5)


def a_snapshot(**changes: Any) -> Snapshot:
    """A healthy snapshot with these changes."""
    snapshot = Snapshot(
        parts={"reader": Part(up=True)},
        pinged_at=1000.0,
        calibrator=SERVING,
        policy=POLICY,
        bypass=BypassReport("off", on=False, objective=Objective.LATENCY, reason=""),
        drift=SignalReport(),
        evidence=None,
        load=Load(),
    )
    return replace(snapshot, **changes)
