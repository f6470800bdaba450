"""What validation certifies of the ladder, once: that it is more accurate than the references, or cheap enough.

*gain*: train chose one policy. Validation gives one lower bound on its accuracy minus that of each reference; it is
certified if the smallest is above zero. With several references the smallest bound needs no correction: it is wrong
only if the bound against the hardest reference is.

*save*: the steps of the path are tested in order of price, each at the whole of delta, until one fails; the last that
held is served (see `certify`). In both, a group is one unit, and only questions in scope count.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from app.certify import bets as betting
from app.core.artifact import Certificate, LadderFit
from app.offline.refit.choose import Guarantee
from app.offline.refit.follow import Fitted, Given
from app.offline.refit.splits import Units, units
from app.offline.table import Floats


@dataclass(frozen=True, eq=False, slots=True)
class Compared:
    """One policy on validation: in each group, its accuracy minus that of each reference."""

    fit: LadderFit
    differences: Mapping[int, Floats]

    @classmethod
    def of(cls, fit: LadderFit, right: Floats, fixed: Mapping[int, Floats], grouping: Units) -> "Compared":
        """Pair the answers given with those of each reference."""
        return cls(fit, {k: grouping.means(right - one) for k, one in fixed.items()})

    def bounds(self, delta: float) -> dict[int, float]:
        """A lower bound on the difference from each reference, at confidence 1 - delta."""
        return {
            k: betting.lower_bound(d.tolist(), low=-1.0, high=1.0, delta=delta) for k, d in self.differences.items()
        }

    def holds(self, guarantee: Guarantee) -> bool:
        """Whether the difference from every reference is shown to be above -epsilon."""
        return all(
            betting.p_value(d.tolist(), -guarantee.epsilon, low=-1.0, high=1.0, delta=guarantee.delta)
            <= guarantee.delta
            for d in self.differences.values()
        )


def certify_ladder(fitted: Fitted, path: Sequence[tuple[LadderFit, Given]], guarantee: Guarantee) -> LadderFit:
    """Test the path on questions in scope; accuracy leaves out those that the corpus cannot answer."""
    rows = np.flatnonzero(~fitted.outcomes.out_of_corpus & ~fitted.out_of_scope)
    inside = fitted.outcomes.take(rows)
    grouping = units(inside, salt="order")
    fixed = {k: inside.correct[k].astype(np.float64) for k in guarantee.references}
    compared = [Compared.of(fit, given.right[rows], fixed, grouping) for fit, given in path]
    if path[0][0].goal == "gain":
        return certify_gain(compared[0], guarantee, grouping.count)
    return certify_save(compared, guarantee, grouping.count)


def certify_gain(one: Compared, guarantee: Guarantee, n: int) -> LadderFit:
    """One policy, one bound; without a gain the reason says what was shown instead."""
    bounds = one.bounds(guarantee.delta)
    worst = min(bounds, key=lambda k: bounds[k])
    if bounds[worst] > 0.0:
        return replace(one.fit, certificate=Certificate(0.0, guarantee.delta, guarantee.reference, n, bounds[worst]))
    mean = float(one.differences[worst].mean())
    why = (
        f"on {n} validation groups its accuracy minus that of always-k{worst} is {mean:+.3f}, and at least "
        f"{bounds[worst]:+.3f} with probability {1.0 - guarantee.delta:g}: no certain gain. Collect more labels, or "
        "refit with --goal save"
    )
    return replace(one.fit, uncertified_reason=why)


def certify_save(path: Sequence[Compared], guarantee: Guarantee, n: int) -> LadderFit:
    """The cheapest step up to which every step holds, or the first step with the reason why it does not."""
    last: Compared | None = None
    for step in path:
        if not step.holds(guarantee):
            break
        last = step
    if last is not None:
        bound = min(last.bounds(guarantee.delta).values())
        return replace(
            last.fit, certificate=Certificate(guarantee.epsilon, guarantee.delta, guarantee.reference, n, bound)
        )
    first = path[0]
    worst = min(first.differences, key=lambda k: float(first.differences[k].mean()))
    mean, deviation = float(first.differences[worst].mean()), float(first.differences[worst].std())
    why = (
        f"{n} validation groups do not show that the ladder is at most {guarantee.epsilon:g} less accurate than "
        f"always-k{worst}: the difference is {mean:+.3f} with a standard deviation of {deviation:.3f}. Collect more "
        "labels, or allow a larger epsilon"
    )
    return replace(first.fit, uncertified_reason=why)
