"""Questions of which only one action's outcome is known, weighed by how likely it was that this one would be seen.

A gate answers easy questions closed-book and hard ones from five passages, so what its log says of an action holds for
the questions that it chose the action for. Where chance had a part, a row stands for 1 / propensity questions like it.
Rare actions then weigh so much that a few rows would rule, so weights are clipped: that brings some of the bias back,
and takes most of the variance away.
"""

from array import array
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from app.refit.fit import Floats, Weighted
from app.refit.refit import CALIBRATORS
from app.refit.table import SignalColumns

CLIP = 20.0


@dataclass(frozen=True, slots=True)
class Worth:
    """What weighted rows are worth to one calibrator; `effective` is Kish's sample size."""

    rows: int
    effective: float
    clipped: float


def effective_size(weights: Floats) -> float:
    """Kish: as many rows of equal weight would estimate a mean as well."""
    return float(weights.sum() ** 2 / (weights**2).sum()) if len(weights) else 0.0


class SingleActions:
    """Gathers such rows, packed, and hands them out by the calibrator that can learn from them."""

    def __init__(self, clip: float = CLIP) -> None:
        self.clip = clip
        self._groups: dict[str, int] = {}
        self._codes, self._ks, self._right, self._cut = array("q"), array("b"), array("b"), array("b")
        self._chances = array("d")
        self._signals = {False: SignalColumns(), True: SignalColumns()}

    def __len__(self) -> int:
        """How many rows."""
        return len(self._ks)

    def add(
        self,
        group: str,
        k: int,
        chance: float,
        *,
        right: bool,
        signals: Mapping[str, float],
        read_signals: Mapping[str, float],
        might_abstain: bool,
    ) -> str | None:
        """Append one row; returns the name of a signal that is not a number, if there is one."""
        wrong = self._signals[False].add(dict(signals)) or self._signals[True].add(dict(read_signals))
        if wrong is None:
            self._codes.append(self._groups.setdefault(group, len(self._groups)))
            self._ks.append(k)
            self._right.append(right)
            self._cut.append(might_abstain)
            self._chances.append(chance)
        return wrong

    def finish(self, *, without: Collection[str]) -> tuple[dict[str, Weighted], dict[str, Worth], int]:
        """Rows and their worth by calibrator, and how many rows fell away because their group is among `without`."""
        codes, ks, right = np.array(self._codes), np.array(self._ks), np.array(self._right, dtype=np.bool_)
        chances, cut = np.array(self._chances), np.array(self._cut, dtype=np.bool_)
        barred = np.array([group in without for group in self._groups], dtype=np.bool_)
        kept = ~barred[codes] if len(codes) else np.zeros(0, dtype=np.bool_)
        columns = {read: signals.finish() for read, signals in self._signals.items()}
        weighted, worth = {}, {}
        for name, (source, k) in CALIBRATORS.items():
            # An answer that is withheld for want of confidence is never judged. Those that are left are a fair sample
            # to a calibrator that reads the very signals by which they were withheld, and a flattering one to p1, p5.
            eligible = kept & ~cut if source == 0 and k > 0 else kept
            mine = np.flatnonzero(eligible & (ks == k))
            if not len(mine):
                continue
            # A question weighs one in all, however often it was asked.
            asked = np.bincount(codes[eligible], minlength=len(barred))
            weights = np.minimum(1.0 / chances[mine], self.clip) / asked[codes[mine]]
            effective = effective_size(weights)
            worth[name] = Worth(len(mine), effective, float((1.0 / chances[mine] > self.clip).mean()))
            weighted[name] = Weighted(
                {signal: values[mine] for signal, values in columns[source > 0].items()},
                right[mine],
                # Scaled so that together they count as what they are worth beside rows that count one each.
                weights * (effective / weights.sum()),
            )
        return weighted, worth, int((~kept).sum())
