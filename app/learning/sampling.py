"""Random draws about a question, and the budget for exploration and shadow runs."""

import random
from collections.abc import Callable

from app.core.effective_policy import Sampled
from app.core.question import Question
from app.core.record import DecisionRecord

# Allowed before there is any traffic: about ten questions with five passages.
_ALLOWANCE_TOKENS = 10_000.0


class Budget:
    """Caps the tokens of exploration and shadow runs, as a share of all. Beyond it nothing is drawn."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._all = 0.0
        self._learning = 0.0

    def observe(self, record: DecisionRecord) -> None:
        """Count a finished question; an explored one is charged to the budget."""
        self._all += record.tokens
        if record.policy.explored:
            self._learning += record.tokens

    def spend(self, tokens: float) -> None:
        """Charge the tokens of a shadow run."""
        self._learning += tokens

    @property
    def left(self) -> bool:
        """Whether the budget allows another exploration or shadow run."""
        return self._learning < self._share * self._all + _ALLOWANCE_TOKENS


class Sampler:
    """Draws which questions are explored, shadowed, or asked for feedback; before any upstream call."""

    def __init__(
        self,
        *,
        explore: float = 0.0,
        solicit: float = 0.0,
        shadow: Callable[[Question], bool] = lambda _: False,
        budget: Budget | None = None,
    ) -> None:
        self._explore = explore
        self._solicit = solicit
        self._shadow = shadow
        self._budget = budget
        # Need not be unpredictable: a caller who knew it would gain nothing.
        self._rng = random.Random()  # noqa: S311

    def draw(self, question: Question) -> Sampled:
        """Draw for this question."""
        share = self._explore if self._budget is None or self._budget.left else 0.0
        drawn = self._rng.random() if share > 0.0 else 1.0
        return Sampled(
            share=share,
            explore=drawn / share if drawn < share else None,
            shadow=question.may_give_feedback and self._shadow(question),
            solicit=question.may_give_feedback and self._rng.random() < self._solicit,
        )
