"""Three splits, three types: what tunes takes a `Train`, what certifies a `Validation`, what reports a `Test`.

A group falls where a hash of its name says, so it never straddles two splits, and adding rows moves nobody.
"""

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.offline.table import Outcomes

TRAIN_SHARE = 0.4
VALIDATION_SHARE = 0.4
# Candidates are compared on at most about this many rows: beyond, they differ by less than anyone could use.
COMPARED_ROWS = 5_000


@dataclass(frozen=True, eq=False, slots=True)
class Train:
    """Rows for fitting, and for choosing among fits."""

    outcomes: Outcomes


@dataclass(frozen=True, eq=False, slots=True)
class Validation:
    """Rows for certifying, used once."""

    outcomes: Outcomes


@dataclass(frozen=True, eq=False, slots=True)
class Test:
    """Rows for the report, used once, after everything has been chosen."""

    # Keeps pytest from collecting a class by its name.
    __test__ = False

    outcomes: Outcomes


def position(group: str, salt: str = "split") -> float:
    """A number in [0, 1) that depends on nothing but the group's name and the purpose it is asked for."""
    digest = hashlib.sha256(f"{salt}:{group}".encode(errors="surrogatepass")).digest()
    return (int.from_bytes(digest[:8]) >> 11) / 2**53


def split(outcomes: Outcomes) -> tuple[Train, Validation, Test]:
    """Part a table 40/40/20 by group, keeping the order of rows."""
    place = np.array([position(group) for group in outcomes.groups])
    train, held = place < TRAIN_SHARE, place >= TRAIN_SHARE + VALIDATION_SHARE
    return (
        Train(outcomes.take(np.flatnonzero(train))),
        Validation(outcomes.take(np.flatnonzero(~train & ~held))),
        Test(outcomes.take(np.flatnonzero(held))),
    )


@dataclass(frozen=True, eq=False, slots=True)
class Units:
    """Groups as the units of every average: a group weighs one, however many phrasings it has."""

    codes: NDArray[np.intp]
    sizes: NDArray[np.float64]

    @property
    def count(self) -> int:
        """How many groups."""
        return len(self.sizes)

    @property
    def single(self) -> bool:
        """Whether every group is one row."""
        return self.count == len(self.codes)

    @property
    def weights(self) -> NDArray[np.float64]:
        """Weights of rows, adding up to one, under which a mean of rows is the mean of group means."""
        return 1.0 / (self.sizes[self.codes] * self.count)

    def means(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """The mean of each group."""
        if self.single:
            ordered = np.empty(self.count)
            ordered[self.codes] = values
            return ordered
        return np.bincount(self.codes, weights=values, minlength=self.count) / self.sizes

    def clearance(self, values: NDArray[np.float64]) -> float:
        """By how many standard errors the mean over groups lies above zero."""
        means = self.means(values)
        return float(means.mean() * np.sqrt(self.count) / max(float(means.std()), 1e-9))

    def first_groups(self) -> NDArray[np.intp]:
        """The rows of as many of the first groups as hold about COMPARED_ROWS rows."""
        groups = int(np.searchsorted(np.cumsum(self.sizes), COMPARED_ROWS, side="right")) + 1
        return np.flatnonzero(self.codes < groups)

    def take(self, rows: NDArray[np.intp]) -> "Units":
        """The same for some of the rows, which must be all rows of the first groups."""
        return Units(self.codes[rows], np.bincount(self.codes[rows]).astype(np.float64))


def units(outcomes: Outcomes, *, salt: str | None = None) -> Units:
    """Group the rows; with a salt, groups are numbered in the order of a hash, else of first appearance."""
    names = list(dict.fromkeys(outcomes.groups))
    if salt is not None:
        names.sort(key=lambda group: (position(group, salt), group))
    number_of = {group: number for number, group in enumerate(names)}
    numbered = np.array([number_of[group] for group in outcomes.groups], dtype=np.intp)
    return Units(numbered, np.bincount(numbered).astype(np.float64))
