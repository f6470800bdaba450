"""Whether shown confidences still come true: a test that may be looked at after every feedback.

For each answer whose asker was drawn at random for feedback, p is the confidence that was shown and y whether the
answer was right. The hypothesis is that, whatever came before, the mean of p - y is at most the tolerance. A gambler
bets against it. Under it her capital is a supermartingale that starts at one, so that it ever reaches 1/delta with
probability at most delta, however often one looks (Ville's inequality; Waudby-Smith and Ramdas 2024).

A gambler who has watched a sound calibrator for a year must not be broke on the day when it fails. So she keeps her
capital in a drawer, takes a little of it to the table before each feedback, and sizes her bets by the recent past:
what she lost earlier delays an alarm by the logarithm of her age at most, not in proportion to it.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

# How much of what lies on the table one feedback can take away.
_MOST = 0.75
# Bets follow the mean and spread of about this many feedbacks.
_MEMORY = 100
# Capital beyond this proves nothing more, and would overflow in the end; giving it away keeps the test valid.
_CEILING = 1e12


@dataclass(frozen=True, slots=True)
class Solicited:
    """A judgement that was asked for. `key` is whose it is, None where callers have no keys.

    `position` grows in the order of the log; `version` is the calibrator that p, the confidence shown, came from.
    """

    position: int
    p: float
    correct: bool
    key: str | None
    version: str


@dataclass(slots=True)
class Gambler:
    """One capital, bet on the mean of p - y being above the tolerance."""

    tolerance: float
    seen: int = 0
    mean: float = 0.0
    variance: float = 0.25
    drawer: float = 1.0
    on_table: float = 0.0
    # The most she ever owned: 1 / peak is a p-value that holds at every moment.
    peak: float = 1.0

    def bet(self, gap: float) -> None:
        """Bet, knowing only the past, and then learn one p - y in [-1, 1]."""
        self.seen += 1
        # All is in the drawer at first, and never quite nothing.
        left = 1.0 / (1.0 + math.log(self.seen + 1))
        growth = 1.0 + self._share() * (gap - self.tolerance)
        self.on_table = min(_CEILING, (self.on_table + self.drawer - left) * growth)
        self.drawer = left
        self.peak = max(self.peak, self.on_table + left)
        weight = max(1.0 / (self.seen + 1), 1.0 / _MEMORY)
        self.variance += weight * ((gap - self.mean) ** 2 - self.variance)
        self.mean += weight * (gap - self.mean)

    def _share(self) -> float:
        """What grows capital fastest if the future is like the recent past; nothing while that gives no reason."""
        excess = self.mean - self.tolerance
        if excess <= 0.0:
            return 0.0
        return min(excess / (self.variance + excess * excess), _MOST / (1.0 + self.tolerance))


class DriftTest:
    """The test for one calibrator, fed in the order of the log.

    No key may raise the alarm alone: beside the gambler who sees everything there is one for each key who sees all
    but that key's feedback, and the alarm waits for every one of them. Feedback without a key is nobody's to leave
    out. If one key lies and the calibrator is sound for the others, the alarm still comes with probability delta at
    most.
    """

    def __init__(self, *, tolerance: float = 0.05, delta: float = 0.05) -> None:
        if not 0.0 <= tolerance < 1.0 or not 0.0 < delta < 1.0:
            raise ValueError(f"tolerance must lie in [0, 1) and delta in (0, 1), got {tolerance} and {delta}")
        self.tolerance = tolerance
        self.delta = delta
        self._all = Gambler(tolerance)
        self._without: dict[str, Gambler] = {}

    def update(self, p: float, *, correct: bool, key: str | None = None) -> None:
        """Learn one judgement."""
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"a probability lies in [0, 1], got {p}")
        if key is not None and key not in self._without:
            # Until now this key had said nothing, so leaving it out changed nothing.
            self._without[key] = replace(self._all)
        gap = p - correct
        self._all.bet(gap)
        for left_out, gambler in self._without.items():
            if left_out != key:
                gambler.bet(gap)

    @property
    def seen(self) -> int:
        """How many judgements were learned."""
        return self._all.seen

    @property
    def recent_gap(self) -> float:
        """How much confidences exceeded the share of right answers of late; a plain estimate, 0 at the start."""
        return self._all.mean

    @property
    def evidence(self) -> float:
        """The logarithm of the most that was ever won over log(1/delta): from 1 on, drift is shown."""
        return self._of(self._all.peak)

    @property
    def evidence_without_any_key(self) -> float:
        """The same with the feedback left out of whichever key matters most."""
        return self._of(min((gambler.peak for gambler in self._without.values()), default=self._all.peak))

    @property
    def alarm(self) -> bool:
        """Whether drift is shown, and not by one key alone; once true, it stays true."""
        return min(self.evidence, self.evidence_without_any_key) >= 1.0

    def _of(self, peak: float) -> float:
        return math.log(peak) / math.log(1.0 / self.delta)

    def state(self) -> dict[str, Any]:
        """Everything learned, for JSON."""
        return {
            "tolerance": self.tolerance,
            "delta": self.delta,
            "all": asdict(self._all),
            "without": {key: asdict(gambler) for key, gambler in self._without.items()},
        }

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> "DriftTest":
        """The test as it was when `state` was taken."""
        test = cls(tolerance=state["tolerance"], delta=state["delta"])
        test._all = Gambler(**state["all"])
        test._without = {key: Gambler(**gambler) for key, gambler in state["without"].items()}
        return test
