"""Cutting a hopeless probe short: what its first tokens say, once the answer is known to go on after them."""

from collections.abc import Mapping

from app.decision.policy import Ask, Decision, Gate, Reason, certified, early_in_force


def watched_lengths(ask: Ask, gate: Gate) -> tuple[int, ...]:
    """After how many tokens to ask `exit_now`, ascending; none where probes run to their end."""
    early = early_in_force(ask, gate)
    return () if early is None else tuple(length for length, _ in early.exits)


def exit_now(ask: Ask, gate: Gate, length: int, signals: Mapping[str, float]) -> Decision | None:
    """Give the probe up where the P(right) of its first `length` tokens is below its threshold; None: let it run.

    To be asked when the token after them has come: an answer that ends there is judged whole, as it was when the
    threshold was chosen. A missing signal never cuts short.
    """
    early, artifact = early_in_force(ask, gate), gate.artifact
    if early is None or artifact is None:
        return None
    tau = dict(early.exits).get(length)
    if tau is None:
        return None
    p0 = artifact.exits[length].predict(signals)
    if p0 is None or p0 >= tau:
        return None
    fit = gate.fit_in_force(ask.policy)
    assert fit is not None
    whole = certified(ask, gate, fit, watched=True)
    return Decision(early.exit_k, Reason.HOPELESS, p0, fit.thresholds, whole, fit.escalate)
