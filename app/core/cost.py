"""What gating costs against always fetching the same passages; any unit, ms or tokens or money.

Symbols as in the paper: cb a closed-book probe, ret retrieval, ob reading with passages.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

# A number, or an array of draws of it: each answers in kind.
N = TypeVar("N", bound=Any)


class Objective(StrEnum):
    """What the operator wants to spend little of."""

    LATENCY = "latency"
    TOKENS = "tokens"
    CALLS = "calls"
    MONEY = "money"


@dataclass(frozen=True, slots=True)
class Tariff:
    """What an operator pays: per token, per retrieval call and per passage."""

    prompt_token: float = 0.0
    completion_token: float = 0.0
    call: float = 0.0
    passage: float = 0.0

    @property
    def is_free(self) -> bool:
        """Whether no price was named, so that money says nothing."""
        return self == Tariff()

    def generation(self, prompt_tokens: N, completion_tokens: N) -> N:
        """The price of one generation."""
        price: N = prompt_tokens * self.prompt_token + completion_tokens * self.completion_token
        return price

    def retrieval(self, k: int) -> float:
        """The price of fetching k passages."""
        return (self.call if k else 0.0) + self.passage * k


def gate_cost(cb: N, skip: N, retrieving: N) -> N:
    """A gate: a probe for every question, and `retrieving` for each that is not skipped."""
    cost: N = cb + (1.0 - skip) * retrieving
    return cost


def break_even_against(cb: N, retrieving: N, reference: N) -> N:
    """The skip rate from which that gate is cheaper than `reference` for every question, at the same mix of passages.

    Negative where it is cheaper without skipping any, because it reads less; above 1 where it never is. For the binary
    gate against five passages this is the paper's cb / (ret5 + ob5).
    """
    skip: N = 1.0 - (reference - cb) / retrieving
    return skip
