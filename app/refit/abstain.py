"""What a policy's answers are worth once the unsure ones are withheld."""

from dataclasses import dataclass

from app.refit.bounds import Floats, answers, selective_p, selective_upper
from app.refit.split import Units


@dataclass(frozen=True, eq=False, slots=True)
class Given:
    """The answers that one policy gives to a split: whether each is right, and the confidence it is given with."""

    right: Floats
    confidence: Floats

    def gain(self, tau: float, target: float) -> Floats:
        """Above zero on average exactly where the error among answered is below the target; no ratio is needed."""
        gain: Floats = answers(self.confidence, tau) * (target - (1.0 - self.right))
        return gain

    def p_value(self, tau: float, units: Units, target: float, delta: float) -> float:
        """Of the hypothesis that the error among answered is at least the target."""
        return selective_p(self.right, answers(self.confidence, tau), units, target, delta)

    def upper(self, tau: float, units: Units, delta: float) -> float:
        """The pointwise upper bound on the error among answered."""
        return selective_upper(self.right, answers(self.confidence, tau), units, delta)

    def observed(self, tau: float, units: Units) -> tuple[float, float]:
        """The share that is answered, and the error among it; 1 where nothing is."""
        answered = answers(self.confidence, tau)
        share = float(answered @ units.weights)
        return share, float(((1.0 - self.right) * answered) @ units.weights) / share if share else 1.0
