"""What a schedule spends where time saved is no saving (tokens, calls, money), and what a pre-gate changes of any cost.

Serial spends nothing in vain, so what it takes and what it spends are one formula, `app.decision.cost.serial`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from app.decision.cost import NO_EXIT, Costs, Exit, Shares, after_exits, always, probing

# A retrieval call is a call, whatever it returns; generating is none.
CALLS = Costs(cb=0.0, ret1=1.0, ob1=0.0, ret5=1.0, ob5=0.0)


@dataclass(frozen=True, slots=True)
class Pregate:
    """Questions that are sent to read passages by their text alone, without a probe.

    `caught` and `lost` are the shares of those that would have retrieved anyway and of those that would not, `one` the
    share of all sent that reads one passage, the others five. `embed` is the cost of the question's embedding, which
    must be had before a probe may begin; retrieval then need not pay it again. `then` is the exit among those left.
    """

    caught: float
    lost: float = 0.0
    one: float = 0.0
    embed: float = 0.0
    then: Exit = NO_EXIT


def overlap_spent(c: Costs, s: Shares, exit_: Exit = NO_EXIT) -> float:
    """Every question is searched for, read or not."""
    read, _ = after_exits(s, exit_)
    return probing(c, s, exit_) + c.ret5 + read.k1 * c.ob1 + read.k5 * c.ob5


def race_spent(c: Costs, s: Shares, exit_: Exit = NO_EXIT, *, begun: float = 1.0) -> float:
    """The same, and as much of every losing read as was `begun` before it was cancelled.

    Of tokens that is all of it once reading began, as a prompt comes first. An exit may come before reading does, which
    is left out: this is the most that a race spends.
    """
    read, _ = after_exits(s, exit_)
    return overlap_spent(c, s, exit_) + (read.k0 + read.k1) * begun * c.ob5


def begun_at_probe_end(c: Costs) -> float:
    """How much of reading five passages is done, by time, when the probe beside it ends."""
    return min(1.0, max(0.0, (c.cb - c.ret5) / c.ob5)) if c.ob5 > 0.0 else 0.0


def pregated(cost: Callable[[Costs, Shares, Exit], float], c: Costs, s: Shares, gate: Pregate) -> float:
    """Any schedule's cost, by time or by what is spent, behind a pre-gate."""
    k0, k1, k5 = s.k0 * (1.0 - gate.lost), s.k1 * (1.0 - gate.caught), s.k5 * (1.0 - gate.caught)
    left = k0 + k1 + k5
    straight = gate.one * always(c, 1) + (1.0 - gate.one) * always(c, 5)
    if left <= 0.0:
        return straight
    later = replace(c, ret1=max(0.0, c.ret1 - gate.embed), ret5=max(0.0, c.ret5 - gate.embed))
    rest = Shares(k0 / left, k1 / left, k5 / left)
    return (1.0 - left) * straight + left * (gate.embed + cost(later, rest, gate.then))
