"""Answering some questions by a random action, so that a log does not only know what the gate chose.

Every action's probability is kept with the record: by its inverse a later fit can weigh what was seen.
"""

from dataclasses import replace

from app.decision.policy import ANSWERED, COMPACT, FULL, Ask, Decision, Reason, Retrieval

# Only what a probability decided is varied: a caller's wish, a missing calibrator or a refusal stays as it is.
_BY_PROBABILITY = frozenset({Reason.CONFIDENT, Reason.BORDERLINE, Reason.UNCERTAIN, Reason.RETRIEVAL_REQUIRED})


def explore(ask: Ask, decision: Decision, *, share: float, u: float) -> Decision:
    """Let a random action stand in for the decided one with probability `share`; `u` is uniform in [0, 1).

    Drawn evenly from what the caller allows, the decided action included. The answer is then withheld or given by its
    own confidence like any other, and is never called certified.
    """
    open_to_chance = decision.p0 is not None and decision.reason in _BY_PROBABILITY
    if share <= 0.0 or not open_to_chance:
        return decision
    ks = (COMPACT, FULL) if ask.retrieval is Retrieval.REQUIRED else (0, COMPACT, FULL)
    chances = {ANSWERED[k].value: share / len(ks) + (1.0 - share) * (k == decision.k) for k in ks}
    if u >= share:
        return replace(decision, propensities=chances)
    k = ks[min(int(u / share * len(ks)), len(ks) - 1)]
    return replace(decision, k=k, reason=Reason.EXPLORED, certified=False, explored=True, propensities=chances)
