"""A sequential test of the shown confidences, valid after every feedback.

For each answer that was drawn at random for feedback, p is the confidence that was shown, and y is 1 if the answer was
right. The hypothesis is that, given the past, the mean of p - y is at most the tolerance. The test bets against it
(`app.certify.bets`).
"""

import math
from collections.abc import Mapping
from dataclasses import replace

from app.certify.bets import Bettor


class DriftTest:
    """The test for one calibrator, fed in the order of the log.

    No single key can raise the alarm. One bettor sees all feedback, and for each key one more sees all but that key's;
    the alarm needs all of them. Feedback without a key is never left out. If one key sends false feedback and the
    calibrator is correct for the others, the probability of an alarm is still at most delta.
    """

    def __init__(
        self,
        *,
        tolerance: float = 0.05,
        delta: float = 0.05,
        everyone: Bettor | None = None,
        without: Mapping[str, Bettor] | None = None,
    ) -> None:
        """Start a new test, or continue one from its saved `everyone` and `without`."""
        if not 0.0 <= tolerance < 1.0 or not 0.0 < delta < 1.0:
            raise ValueError(f"tolerance must lie in [0, 1) and delta in (0, 1), got {tolerance} and {delta}")
        self.tolerance = tolerance
        self.delta = delta
        self.everyone = everyone or Bettor(tolerance)
        self.without = dict(without or {})

    def update(self, p: float, *, correct: bool, key: str | None = None) -> None:
        """Add one judged answer."""
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"a probability lies in [0, 1], got {p}")
        if key is not None and key not in self.without:
            # This key has given no feedback so far, so the bettor without it has seen everything.
            self.without[key] = replace(self.everyone)
        gap = p - correct
        self.everyone.bet(gap)
        for left_out, bettor in self.without.items():
            if left_out != key:
                bettor.bet(gap)

    @property
    def seen(self) -> int:
        """The number of judged answers so far."""
        return self.everyone.seen

    @property
    def recent_gap(self) -> float:
        """The recent mean of confidence minus the share of right answers; an estimate, 0 at the start."""
        return self.everyone.mean

    @property
    def evidence(self) -> float:
        """The logarithm of the largest capital over log(1/delta): drift is detected at 1."""
        return self._of(self.everyone.peak)

    @property
    def evidence_without_any_key(self) -> float:
        """The same without the feedback of the one key whose feedback matters most."""
        return self._of(min((bettor.peak for bettor in self.without.values()), default=self.everyone.peak))

    @property
    def alarm(self) -> bool:
        """Whether drift is detected, and not by one key alone; once true, it stays true."""
        return min(self.evidence, self.evidence_without_any_key) >= 1.0

    def _of(self, peak: float) -> float:
        return math.log(peak) / math.log(1.0 / self.delta)
