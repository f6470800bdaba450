"""Learning from traffic: answers by a random action, so that the log knows more than what the gate chose, in a budget.

Every action's probability is kept with the record: by its inverse a later fit can weigh what was seen.
"""

import random
from collections.abc import Sequence
from dataclasses import replace

from app.decision.policy import DEFAULT_KS, Ask, Decision, Reason, Retrieval, action_of
from app.decision.record import DecisionRecord

# What may be spent before there is any traffic to take a share of: some ten questions with five passages.
_ALLOWANCE_TOKENS = 10_000.0
# Only what a probability decided is varied: a caller's wish, a missing calibrator or a refusal stays as it is.
_BY_PROBABILITY = frozenset({Reason.CONFIDENT, Reason.BORDERLINE, Reason.UNCERTAIN, Reason.RETRIEVAL_REQUIRED})


def explore(ask: Ask, decision: Decision, ks: Sequence[int], *, share: float, u: float) -> Decision:
    """Let a random action stand in for the decided one with probability `share`; `u` is uniform in [0, 1).

    Drawn evenly from what the caller allows, the decided action included. The answer is then withheld or given by its
    own confidence like any other, and is never called certified.
    """
    open_to_chance = decision.p0 is not None and decision.reason in _BY_PROBABILITY
    if share <= 0.0 or not open_to_chance:
        return decision
    ks = [k for k in ks if k > 0 or ask.retrieval is not Retrieval.REQUIRED]
    chances = {action_of(k): share / len(ks) + (1.0 - share) * (k == decision.k) for k in ks}
    if u >= share:
        return replace(decision, propensities=chances)
    k = ks[min(int(u / share * len(ks)), len(ks) - 1)]
    return replace(decision, k=k, reason=Reason.EXPLORED, certified=False, explored=True, propensities=chances)


class Budget:
    """Caps what learning spends, as a share of all tokens. Where it is spent, nothing is drawn until traffic pays."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._all = 0.0
        self._learning = 0.0

    def observe(self, record: DecisionRecord) -> None:
        """Count a finished question; what a random action cost counts as learning."""
        spent = (record.probe_usage, record.read_usage)
        tokens = sum(usage.prompt_tokens + usage.completion_tokens for usage in spent if usage)
        self._all += tokens
        if record.explored:
            self._learning += tokens

    def spend(self, tokens: float) -> None:
        """Count what a shadow run cost, on top of the traffic."""
        self._learning += tokens

    @property
    def left(self) -> bool:
        """Whether another question may be spent on learning."""
        return self._learning < self._share * self._all + _ALLOWANCE_TOKENS


class DiceExplorer:
    """Draws the questions that a random action answers."""

    def __init__(
        self, share: float, budget: Budget, *, ks: tuple[int, ...] = DEFAULT_KS, dice: random.Random | None = None
    ) -> None:
        self._share = share
        self._budget = budget
        self._ks = ks
        # Not for secrets: a caller who could foresee it would gain nothing.
        self._dice = dice or random.Random()  # noqa: S311

    def consider(self, ask: Ask, decision: Decision) -> Decision:
        """The decision, or a random one in its stead; with the chance of each where chance was at work."""
        if self._share <= 0.0:
            return decision
        share = self._share if self._budget.left else 0.0
        return explore(ask, decision, self._ks, share=share, u=self._dice.random())
