"""What an operator chooses about a refit."""

from dataclasses import dataclass, field
from typing import Literal, get_args

from app.decision.cost import Tariff
from app.errors import DataError
from app.refit.choose import DEFAULT_METHODS
from app.refit.fit import Method
from app.refit.ledger import ACTIONS, Objective

Reference = Literal["every", "k0", "k1", "k5"]
REFERENCES: tuple[Reference, ...] = get_args(Reference)


@dataclass(frozen=True, slots=True)
class Options:
    """What the operator chooses. `created` is passed in, so that a refit can be repeated to the byte."""

    name: str
    created: str
    source: str = ""
    objective: Objective = "passage"
    reference: Reference = "every"
    epsilon: float = 0.02
    delta: float = 0.1
    risk_target: float = 0.2
    risk_delta: float = 0.1
    signals: tuple[str, ...] | None = None
    methods: tuple[Method, ...] = DEFAULT_METHODS
    tariff: Tariff = field(default_factory=Tariff)
    # Whether questions may be decided before their probe, or before its end; None: where the objective would see it.
    pregate: bool | None = None
    exits: bool | None = None

    def __post_init__(self) -> None:
        """Refuse levels that are no probabilities."""
        for name in ("epsilon", "delta", "risk_target", "risk_delta"):
            if not 0.0 < getattr(self, name) < 1.0:
                raise DataError(f"{name} is {getattr(self, name)}: choose a number between 0 and 1")

    @property
    def references(self) -> tuple[int, ...]:
        """The fixed actions that a certified policy must not fall short of."""
        return ACTIONS if self.reference == "every" else (int(self.reference[1:]),)
