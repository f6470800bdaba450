"""How much may be spent on learning, and the dice: answers by a random action, and shadow runs."""

import random

from app.decision.explore import explore
from app.decision.policy import Ask, Decision
from app.decision.record import DecisionRecord

# What may be spent before there is any traffic to take a share of: some ten questions with five passages.
_ALLOWANCE_TOKENS = 10_000.0


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

    def __init__(self, share: float, budget: Budget, *, dice: random.Random | None = None) -> None:
        self._share = share
        self._budget = budget
        # Not for secrets: a caller who could foresee it would gain nothing.
        self._dice = dice or random.Random()  # noqa: S311

    def consider(self, ask: Ask, decision: Decision) -> Decision:
        """The decision, or a random one in its stead; with the chance of each where chance was at work."""
        if self._share <= 0.0:
            return decision
        share = self._share if self._budget.left else 0.0
        return explore(ask, decision, share=share, u=self._dice.random())
