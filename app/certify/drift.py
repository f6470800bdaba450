"""Whether shown confidences still come true: a test that may be looked at after every feedback.

For each answer whose asker was drawn at random for feedback, p is the confidence that was shown and y whether the
answer was right. The hypothesis is that, whatever came before, the mean of p - y is at most the tolerance. A gambler
bets against it (`app.certify.bets`).
"""

import math
from collections.abc import Mapping
from dataclasses import replace

from app.certify.bets import Bettor


class DriftTest:
    """The test for one calibrator, fed in the order of the log.

    No key may raise the alarm alone: beside the gambler who sees everything there is one for each key who sees all
    but that key's feedback, and the alarm waits for every one of them. Feedback without a key is nobody's to leave
    out. If one key lies and the calibrator is sound for the others, the alarm still comes with probability delta at
    most.
    """

    def __init__(
        self,
        *,
        tolerance: float = 0.05,
        delta: float = 0.05,
        everyone: Bettor | None = None,
        without: Mapping[str, Bettor] | None = None,
    ) -> None:
        """Start from nothing, or go on where a test with the same `everyone` and `without` stopped."""
        if not 0.0 <= tolerance < 1.0 or not 0.0 < delta < 1.0:
            raise ValueError(f"tolerance must lie in [0, 1) and delta in (0, 1), got {tolerance} and {delta}")
        self.tolerance = tolerance
        self.delta = delta
        self.everyone = everyone or Bettor(tolerance)
        self.without = dict(without or {})

    def update(self, p: float, *, correct: bool, key: str | None = None) -> None:
        """Learn one judgement."""
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"a probability lies in [0, 1], got {p}")
        if key is not None and key not in self.without:
            # Until now this key had said nothing, so leaving it out changed nothing.
            self.without[key] = replace(self.everyone)
        gap = p - correct
        self.everyone.bet(gap)
        for left_out, bettor in self.without.items():
            if left_out != key:
                bettor.bet(gap)

    @property
    def seen(self) -> int:
        """How many judgements were learned."""
        return self.everyone.seen

    @property
    def recent_gap(self) -> float:
        """How much confidences exceeded the share of right answers of late; a plain estimate, 0 at the start."""
        return self.everyone.mean

    @property
    def evidence(self) -> float:
        """The logarithm of the most that was ever won over log(1/delta): from 1 on, drift is shown."""
        return self._of(self.everyone.peak)

    @property
    def evidence_without_any_key(self) -> float:
        """The same with the feedback left out of whichever key matters most."""
        return self._of(min((bettor.peak for bettor in self.without.values()), default=self.everyone.peak))

    @property
    def alarm(self) -> bool:
        """Whether drift is shown, and not by one key alone; once true, it stays true."""
        return min(self.evidence, self.evidence_without_any_key) >= 1.0

    def _of(self, peak: float) -> float:
        return math.log(peak) / math.log(1.0 / self.delta)
