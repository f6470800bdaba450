"""Deciding by the question alone, before anything is generated: where a probe is hopeless, nobody pays for one."""

from collections.abc import Sequence

from app.decision.artifact import Early, Thresholds
from app.decision.policy import (
    COMPACT,
    FULL,
    Ask,
    Decision,
    Gate,
    Reason,
    Retrieval,
    certified,
    early_in_force,
    foregone,
)


def wants_embedding(ask: Ask, gate: Gate) -> bool:
    """Tell whether `consider` has anything to compare, so that the question must be embedded before it is probed."""
    early = early_in_force(ask, gate)
    return early is not None and early.unasked > 0.0


def consider(ask: Ask, gate: Gate, text: str, vector: Sequence[float]) -> Decision | None:
    """Decide without a probe where the question's own P(closed-book right) is below its threshold; None: probe it.

    Where no probe could change what the others read either, they are decided, too.
    """
    early = early_in_force(ask, gate)
    if early is None or gate.artifact is None or gate.artifact.foresight is None:
        return None
    p0, p1 = gate.artifact.foresight.predict(text, vector)
    fit = gate.fit_in_force(ask.policy)
    assert fit is not None
    if p0 is None:
        return None
    k = passages_unasked(p1, early) if p0 < early.unasked else foregone(fit.thresholds)
    if k is None:
        return None
    return Decision(k, Reason.FORESEEN, p0, fit.thresholds, certified(ask, gate, fit, watched=True), fit.escalate)


def passages_unasked(p1: float | None, early: Early) -> int:
    """How many passages a question reads that is not probed; a missing p1 reads five, unless all read one."""
    if p1 is None:
        return COMPACT if early.compact <= 0.0 else FULL
    return COMPACT if p1 >= early.compact else FULL


def insist(ask: Ask, gate: Gate, text: str, vector: Sequence[float] | None) -> Decision:
    """Decide for a question that an operator's rule sends to the passages: no probe, and as many as it may need.

    The question's own P(k=1 right) chooses between one and five where it may; else the artifact's best fixed number
    of passages; five where nothing is calibrated. Never certified: the rule is no part of what was.
    """
    artifact, early = gate.artifact, early_in_force(ask, gate)
    k = FULL if artifact is None else artifact.fallback_action
    thresholds: Thresholds | None = None
    if artifact is not None and artifact.foresight is not None and early is not None and vector is not None:
        _, p1 = artifact.foresight.predict(text, vector)
        k = passages_unasked(p1, early)
        fit = gate.fit_in_force(ask.policy)
        thresholds = fit.thresholds if fit else None
    return Decision(k, Reason.RETRIEVAL_REQUIRED, thresholds=thresholds)


def may_insist(ask: Ask) -> bool:
    """Whether an operator's rule has a say: not where the caller forbids passages or already asks for all of them."""
    return ask.retrieval is not Retrieval.FORBIDDEN and ask.policy.value not in {"always", "never"}
