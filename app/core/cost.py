"""The cost of gating, compared with always reading the same number of passages; in ms, tokens or money.

Symbols as in the paper: cb is a closed-book probe, ret is retrieval, ob is reading with passages.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

# A number, or an array of draws of it; the result has the same type.
N = TypeVar("N", bound=Any)


class Objective(StrEnum):
    """The cost that a refit minimises and the bypass watches."""

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
        """Whether every price is 0, so that costs in money mean nothing."""
        return self == Tariff()

    def generation(self, prompt_tokens: N, completion_tokens: N) -> N:
        """The price of one generation."""
        price: N = prompt_tokens * self.prompt_token + completion_tokens * self.completion_token
        return price

    def retrieval(self, k: int) -> float:
        """The price of fetching k passages."""
        return (self.call if k else 0.0) + self.passage * k


def break_even_against(cb: N, retrieving: N, reference: N) -> N:
    """The skip rate above which gating is cheaper than `reference`, at the same mix of passages.

    Negative if gating is cheaper without any skips, because it reads less; above 1 if it never is. For the binary gate
    and five passages this is the paper's cb / (ret5 + ob5).
    """
    skip: N = 1.0 - (reference - cb) / retrieving
    return skip
