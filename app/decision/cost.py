"""What gating costs against always fetching the same passages, for each schedule; any unit, ms or tokens or money.

Symbols as in the paper: cb a closed-book probe, ret retrieval, ob reading with passages.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, TypeVar


class Number(Protocol):
    """What the arithmetic below asks of a number, so that it serves one value and an array of draws alike."""

    def __add__(self, other: Any, /) -> Any: ...  # noqa: ANN401 - a float and an array each answer in kind

    def __sub__(self, other: Any, /) -> Any: ...  # noqa: ANN401

    def __rsub__(self, other: Any, /) -> Any: ...  # noqa: ANN401

    def __mul__(self, other: Any, /) -> Any: ...  # noqa: ANN401

    def __truediv__(self, other: Any, /) -> Any: ...  # noqa: ANN401


N = TypeVar("N", bound=Number)


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


@dataclass(frozen=True, slots=True)
class Costs:
    """Mean cost of each part of a question."""

    cb: float
    ret1: float
    ob1: float
    ret5: float
    ob5: float


@dataclass(frozen=True, slots=True)
class Shares:
    """How often each number of passages is read; the three add up to one."""

    k0: float
    k1: float
    k5: float

    def __post_init__(self) -> None:
        if min(self.k0, self.k1, self.k5) < 0.0 or abs(self.k0 + self.k1 + self.k5 - 1.0) > 1e-9:
            raise ValueError(f"shares must be non-negative and add up to one, got {self}")


@dataclass(frozen=True, slots=True)
class Exit:
    """Early exit: the share of retrieving questions whose probe is cut short, and how much of it was spent.

    `lost` is the share of the other questions that is cut too, and so reads five passages instead of none.
    """

    caught: float
    spent: float
    lost: float = 0.0


NO_EXIT = Exit(caught=0.0, spent=1.0)


@dataclass(frozen=True, slots=True)
class Contention:
    """What two generations side by side on one server take from each other: the probe from the read's start, and back.

    A batching server reads a prompt within one step, for which every answer in the batch waits; and what arrives
    waits for the end of the step at hand.
    """

    probe: float = 0.0
    read: float = 0.0


ALONE = Contention()


def always_rag(c: Costs) -> float:
    """Retrieve and read five passages for every question, with no probe."""
    return c.ret5 + c.ob5


def always(c: Costs, k: int) -> float:
    """Read k passages for every question, with no probe."""
    return {1: c.ret1 + c.ob1, 5: c.ret5 + c.ob5}[k]


def serial(c: Costs, s: Shares, exit_: Exit = NO_EXIT) -> float:
    """Probe, then retrieve, then read; an exit cuts the probes that would have led to retrieval."""
    read, _ = after_exits(s, exit_)
    return probing(c, s, exit_) + read.k1 * (c.ret1 + c.ob1) + read.k5 * (c.ret5 + c.ob5)


def overlap(c: Costs, s: Shares, exit_: Exit = NO_EXIT) -> float:
    """Retrieve five passages while the probe runs, for every question; only reading waits for both.

    A saving in latency only: `app.decision.spending` says what it spends.
    """
    s, exit_ = after_exits(s, exit_)
    retrieving = s.k1 + s.k5
    late = retrieving * exit_.caught * max(c.cb * exit_.spent, c.ret5)
    waited = retrieving * (1.0 - exit_.caught) * max(c.cb, c.ret5)
    return s.k0 * c.cb + late + waited + s.k1 * c.ob1 + s.k5 * c.ob5


def race(c: Costs, s: Shares, exit_: Exit = NO_EXIT, beside: Contention = ALONE) -> float:
    """Probe and read five passages side by side, and cancel the loser. One passage is read after the probe."""
    s, exit_ = after_exits(s, exit_)
    whole = c.cb + beside.probe if c.cb > c.ret5 else c.cb
    cut = c.cb * exit_.spent
    cut = cut + beside.probe if cut > c.ret5 else cut
    total = s.k0 * whole
    for weight, probe in ((1.0 - exit_.caught, whole), (exit_.caught, cut)):
        read = c.ret5 + c.ob5 + (beside.read if probe > c.ret5 else 0.0)
        total += weight * (s.k1 * (max(probe, c.ret5) + c.ob1) + s.k5 * max(probe, read))
    return total


def probing(c: Costs, s: Shares, exit_: Exit = NO_EXIT) -> float:
    """What probes cost on average, those that an exit cuts short included."""
    s, exit_ = after_exits(s, exit_)
    return c.cb * (1.0 - (s.k1 + s.k5) * exit_.caught * (1.0 - exit_.spent))


def after_exits(s: Shares, exit_: Exit) -> tuple[Shares, Exit]:
    """The shares as they are read, and the exit among them, once questions cut by mistake count as retrieving."""
    lost = s.k0 * exit_.lost
    if lost == 0.0:
        return s, exit_
    retrieving = s.k1 + s.k5
    caught = (retrieving * exit_.caught + lost) / (retrieving + lost)
    return Shares(s.k0 - lost, s.k1, s.k5 + lost), Exit(caught, exit_.spent)


def break_even_skip(c: Costs) -> float:
    """The share of skipped retrievals from which the serial binary gate is cheaper; above 1 it never is."""
    return c.cb / always_rag(c)


def overlap_break_even_skip(c: Costs) -> float:
    """The same where retrieval overlaps the probe: what is waited for beyond it, over what a skip saves."""
    wait = max(c.cb, c.ret5)
    saved_by_skip = wait - c.cb + c.ob5
    return (wait - c.ret5) / saved_by_skip if saved_by_skip > 0.0 else float("inf")


def race_break_even_skip(c: Costs) -> float:
    """The same where reading races the probe: a slow probe can only delay, never lead."""
    full = c.ret5 + c.ob5
    if c.cb < full:
        return 0.0
    return float("inf") if c.cb > full else 1.0


def mean_retrieving(c: Costs, s: Shares) -> float:
    """What a question that reads passages pays for them, on average over how many they are."""
    retrieving = s.k1 + s.k5
    if retrieving == 0.0:
        raise ValueError("no question reads passages, so there is no mean of what they cost")
    return (s.k1 * always(c, 1) + s.k5 * always(c, 5)) / retrieving


def gate_cost(cb: N, skip: N, retrieving: N) -> N:
    """The serial gate: a probe for every question, and `retrieving` for each that is not skipped."""
    cost: N = cb + (1.0 - skip) * retrieving
    return cost


def break_even_against(cb: N, retrieving: N, reference: N) -> N:
    """The skip rate from which that gate is cheaper than `reference` for every question, at the same mix of passages.

    Negative where it is cheaper without skipping any, because it reads less; above 1 where it never is. For the binary
    gate against five passages this is the paper's cb / (ret5 + ob5).
    """
    skip: N = 1.0 - (reference - cb) / retrieving
    return skip


def ratio(gate: float, c: Costs) -> float:
    """Cost of gating over always-RAG; below 1 is a saving."""
    return gate / always_rag(c)
