"""Sequential tests of a calibrator on judged answers, valid after every verdict.

For each answer whose verdict was asked for at random, p is the confidence that was shown, and y is 1 if the answer was
right. The hypotheses are that, given the past, the mean of p - y is at most the tolerance, over all answers and for
each k. Where reference answers judge, and not the caller's opinion, the same holds for y - p. Where a shadow run
answered at every k, the certified promise is tested: the mean of always-k minus the answer given is at most epsilon
plus the tolerance.

Each hypothesis has a bettor, and all of them share one capital. Under all hypotheses it is a supermartingale that
starts at 1, so it ever reaches 1/delta with probability at most delta, without a correction for their number.
Answers come in the order of asking: in the order of verdicts, fast complaints about wrong answers and slow
confirmations of right ones would look like drift.
"""

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from app.certify.bets import STAKE, growth
from app.core.feedback import Asked

# Bets follow the mean and spread of about this many recent values.
_MEMORY = 100
# Capital is cut off here, so that it cannot overflow; giving capital away keeps the test valid.
_CEILING = 1e12
# The share of the capital that bets on confidences that are too high over all answers; the others share the rest.
_POOLED = 0.5
# Keys that are left out one by one; further keys are left out in as many groups.
_KEYS = 32


@dataclass(slots=True)
class Bettor:
    """Bets on an endless stream that the mean of values in [-1, 1] is above `tolerance`.

    The capital must not be lost before the values change, even after a year without change. So most of it stays in a
    reserve, a little of it is staked before each value, and bets follow recent values. Earlier losses then delay an
    alarm by at most the logarithm of the number of values, not in proportion to it.
    """

    tolerance: float
    seen: int = 0
    mean: float = 0.0
    variance: float = 0.25
    reserve: float = 1.0
    at_stake: float = 0.0

    @property
    def capital(self) -> float:
        """What 1 has become."""
        return self.at_stake + self.reserve

    def bet(self, value: float) -> None:
        """Bet by the earlier values, then see this one."""
        self.seen += 1
        # At first everything is in the reserve; it never becomes empty.
        left = 1.0 / (1.0 + math.log(self.seen + 1))
        won = growth(value, self._share(), self.tolerance, STAKE / (1.0 + self.tolerance))
        self.at_stake = min(_CEILING, (self.at_stake + self.reserve - left) * won)
        self.reserve = left
        weight = max(1.0 / (self.seen + 1), 1.0 / _MEMORY)
        self.variance += weight * ((value - self.mean) ** 2 - self.variance)
        self.mean += weight * (value - self.mean)

    def _share(self) -> float:
        """The share with the fastest growth if the future is like the recent past; 0 if betting would not pay."""
        excess = self.mean - self.tolerance
        return excess / (self.variance + excess * excess) if excess > 0.0 else 0.0


@dataclass(slots=True)
class Bets:
    """The bettors of one test by the name of their hypothesis, and the largest capital that they reached together."""

    bettors: dict[str, Bettor] = field(default_factory=dict)
    peak: float = 1.0

    def copy(self) -> "Bets":
        """An independent copy."""
        return Bets({name: replace(bettor) for name, bettor in self.bettors.items()}, self.peak)


@dataclass(slots=True)
class DriftState:
    """What a test remembers: its bets, those without the verdicts of some keys, and who was asked how often."""

    everyone: Bets = field(default_factory=Bets)
    without: dict[str, Bets] = field(default_factory=dict)
    asked: dict[str, int] = field(default_factory=dict)


class DriftTest:
    """The test of one calibrator, fed in the order of asking.

    A key with at most half of the questions cannot raise the alarm alone: the test must also reject without its
    verdicts. If such a key sends false verdicts and the calibrator is right for the others, the probability of an
    alarm is still at most delta. A key with most of the questions is whom the calibrator serves, so its verdicts are
    enough. Verdicts without a key are never left out.
    """

    def __init__(
        self,
        ks: Sequence[int],
        *,
        references: Sequence[int] = (),
        epsilon: float = 0.0,
        tolerance: float = 0.05,
        delta: float = 0.05,
        state: DriftState | None = None,
    ) -> None:
        """Start a new test, or continue one. `references` and `epsilon` are those of the certificate."""
        if not 0.0 <= tolerance < 1.0 or not 0.0 < delta < 1.0:
            raise ValueError(f"tolerance must lie in [0, 1) and delta in (0, 1), got {tolerance} and {delta}")
        self.tolerance = tolerance
        self.delta = delta
        self.state = state or DriftState()
        # Fixed now, so that the shares of the capital do not depend on what is seen.
        self._others = 2 * len(ks) + 1 + len(references)
        self._references = references
        self._promised = epsilon

    def update(self, one: Asked) -> None:
        """Add one answer whose verdict was asked for."""
        group = self._group(one.key)
        self.state.asked[group] = self.state.asked.get(group, 0) + 1
        if one.correct is None:
            return
        if not 0.0 <= one.p <= 1.0:
            raise ValueError(f"a probability lies in [0, 1], got {one.p}")
        if one.key is not None and group not in self.state.without:
            # Its keys have given no verdict so far, so the bets without them have seen everything.
            self.state.without[group] = self.state.everyone.copy()
        values = dict(self._values(one, correct=one.correct))
        self._bet(self.state.everyone, values)
        for left_out, bets in self.state.without.items():
            if left_out != group:
                self._bet(bets, values)

    @property
    def seen(self) -> int:
        """The number of judged answers so far."""
        pooled = self.state.everyone.bettors.get("high")
        return pooled.seen if pooled else 0

    @property
    def evidence(self) -> float:
        """The logarithm of the largest capital over log(1/delta): drift is detected at 1."""
        return self._of(self.state.everyone.peak)

    @property
    def alarm(self) -> bool:
        """Whether drift is detected, and not only by a key with at most half of the questions."""
        peaks = [bets.peak for group, bets in self.state.without.items() if not self._has_most(group)]
        return self._of(min([self.state.everyone.peak, *peaks])) >= 1.0

    @property
    def finding(self) -> str:
        """In words, what the bettor with the largest capital bet on, with its recent mean."""
        bettors = self.state.everyone.bettors
        name = max(bettors, key=lambda one: self._share(one) * bettors[one].capital)
        kind, _, k = name.partition(":")
        mean = bettors[name].mean
        if kind == "below":
            return f"always reading k={k} is recently more accurate than the certified policy by {mean:.2f}"
        where = f" at k={k}" if k else ""
        if kind == "high":
            return f"recent confidences exceed the share of right answers{where} by {mean:.2f}"
        return f"the share of right answers{where} recently exceeds the confidences by {mean:.2f}"

    def _values(self, one: Asked, *, correct: bool) -> Iterator[tuple[str, float]]:
        gap = one.p - correct
        yield "high", gap
        yield f"high:{one.k}", gap
        if one.by_references:
            yield "low", -gap
            yield f"low:{one.k}", -gap
        if one.k in one.shadow:
            for k in self._references:
                if k in one.shadow:
                    yield f"below:{k}", float(one.shadow[k]) - float(one.shadow[one.k])

    def _bet(self, bets: Bets, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            bettor = bets.bettors.get(name)
            if bettor is None:
                promised = self._promised if name.startswith("below") else 0.0
                bettor = bets.bettors[name] = Bettor(self.tolerance + promised)
            bettor.bet(value)
        # The share of a bettor that has seen nothing is still there.
        gained = sum(self._share(name) * (bettor.capital - 1.0) for name, bettor in bets.bettors.items())
        bets.peak = max(bets.peak, 1.0 + gained)

    def _share(self, name: str) -> float:
        return _POOLED if name == "high" else (1.0 - _POOLED) / self._others

    def _group(self, key: str | None) -> str:
        """The verdicts that are left out together: of one of the first keys, or of some later ones."""
        if key is None:
            return ""
        own = f"={key}"
        if own in self.state.asked or sum(name.startswith("=") for name in self.state.asked) < _KEYS:
            return own
        return f"#{zlib.crc32(key.encode()) % _KEYS}"

    def _has_most(self, group: str) -> bool:
        """Whether one key was asked more often than all others together."""
        return group.startswith("=") and 2 * self.state.asked[group] > sum(self.state.asked.values())

    def _of(self, peak: float) -> float:
        return math.log(peak) / math.log(1.0 / self.delta)
