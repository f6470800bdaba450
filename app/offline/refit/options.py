"""What the operator chooses for a refit."""

from dataclasses import dataclass, field
from typing import Literal

from app.core.cost import Objective, Tariff
from app.core.policy import Policy
from app.errors import DataError
from app.offline.refit.choose import Guarantee
from app.offline.refit.climb import BUDGET
from app.offline.refit.ladder import PRICES
from app.offline.refit.scope import ALPHA

EVERY = "every"
LARGEST = "largest"


@dataclass(frozen=True, slots=True)
class Options:
    """What the operator chooses. `created` is an argument, so that a refit can be repeated to the byte."""

    name: str
    created: str
    source: str = ""
    # The policy to certify: only one is, so that no delta is shared. The others are fitted for comparison.
    policy: Literal[Policy.LADDER, Policy.GRADED] = Policy.LADDER
    # `save`: the cheapest policy that is at most epsilon less accurate. `gain`: the most accurate one within a budget.
    goal: Literal["save", "gain"] = "save"
    # For `gain`: the share of always-largest's cost that may be spent, met on train.
    budget: float = BUDGET
    # The prices of accuracy that train tries, ascending; each has heads of its own.
    prices: tuple[float, ...] = PRICES
    objective: Objective = Objective.TOKENS
    # What accuracy is compared with: the largest fixed number of passages, another one, e.g. "k1", or every one.
    reference: str = LARGEST
    epsilon: float = 0.02
    delta: float = 0.1
    risk_target: float = 0.2
    risk_delta: float = 0.1
    # The rate of false alarms of the scope test.
    alpha: float = ALPHA
    # The number of this refit among those of its calibrator, which share both deltas.
    refit: int = 1
    # What counts once in every average: a group of questions, or a request, however often its group was asked.
    per: Literal["group", "request"] = "group"
    tariff: Tariff = field(default_factory=Tariff)

    def __post_init__(self) -> None:
        """Refuse levels that are not probabilities."""
        for name in ("epsilon", "delta", "risk_target", "risk_delta", "alpha"):
            if not 0.0 < getattr(self, name) < 1.0:
                raise DataError(f"{name} is {getattr(self, name)}: choose a number between 0 and 1")

    def guarantee(self, ks: tuple[int, ...]) -> Guarantee:
        """What a certified policy promises."""
        named = {EVERY: ks, LARGEST: ks[-1:]} | {f"k{k}": (k,) for k in ks}
        if self.reference not in named:
            raise DataError(f"reference is {self.reference!r}: choose among {', '.join(named)}")
        references = named[self.reference]
        return Guarantee(references, self.epsilon, self.delta, self.refit)

    def saves_below(self, ks: tuple[int, ...]) -> int | None:
        """The one fixed k whose cost a saving must be below; None for a gain, or against several."""
        return self.guarantee(ks).fixed if self.goal == "save" else None
