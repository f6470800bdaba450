"""Which early thresholds are worth trying, on train: no probe by the question alone, and probes cut short.

Few of them, at quantiles of what they compare: the more are tried, the more the best of them flatters itself on train,
and the sooner the walk on validation ends.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from app.decision.artifact import ALWAYS_K, UNREACHABLE, Early, Thresholds
from app.decision.policy import foregone
from app.refit.ledger import Choices, Floats, Ledger
from app.refit.split import Train

# Shares of the questions that are not probed, and, of those, that read five passages.
_UNASKED = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.84, 0.88, 0.92, 0.95, 0.98)
_FULL = (0.02, 0.05, 0.1, 0.2)
# Shares of the skipped questions that exits may cost at one length.
_LOST = (0.0, 0.02, 0.05)


def unasked_candidates(ledger: Ledger[Train], *, graded: bool) -> Iterator[Early | None]:
    """Nothing early, and every combination of thresholds on the question alone that is tried."""
    yield None
    p0, p1 = ledger.foretold.p0, ledger.foretold.p1
    if p0 is None:
        return
    compacts = [UNREACHABLE]
    if graded:
        compacts += [0.0, *(_quantile(p1, share) for share in _FULL)] if p1 is not None else [0.0]
    for unasked in (*dict.fromkeys(_quantile(p0, share) for share in _UNASKED), UNREACHABLE):
        if unasked > 0.0:
            yield from (Early(unasked, compact) for compact in dict.fromkeys(compacts))


def undisguised(thresholds: Thresholds) -> Thresholds:
    """A fixed action by its own thresholds, where early ones lead to the same passages without a probe as it does."""
    k, early = foregone(thresholds), thresholds.early
    if k is not None and early is not None and (k, early.compact) in {(1, 0.0), (5, UNREACHABLE)}:
        return ALWAYS_K[k]
    return thresholds


def exit_candidates(ledger: Ledger[Train], whole: Thresholds, *, graded: bool) -> Iterator[Thresholds]:
    """A policy with exits, so set that each length costs at most so many of the questions that it skips."""
    if not ledger.foretold.prefixes or foregone(whole) is not None:
        return
    route = ledger.route(whole)
    for lost in _LOST:
        exits = _exits(ledger, route, lost)
        for some in dict.fromkeys((exits, *((one,) for one in exits))):
            for k in (1, 5) if graded and some else (5,) * bool(some):
                yield replace(whole, early=replace(whole.early or Early(), exits=some, exit_k=k))


def _exits(ledger: Ledger[Train], route: Choices, lost: float) -> tuple[tuple[int, float], ...]:
    """The highest tau at each length that cuts no more than a share of what is skipped; none where it cuts nothing."""
    exits = []
    for length, p in sorted(ledger.foretold.prefixes.items()):
        skipped = p[(route == 0) & np.isfinite(p)]
        if len(skipped):
            tau = float(np.quantile(skipped, lost, method="lower"))
            if (p < tau).any():
                exits.append((length, tau))
    return tuple(exits)


def _quantile(p: Floats, share: float) -> float:
    return float(np.quantile(p, share))
