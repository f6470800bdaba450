"""What can be known before a probe is whole, learned on train and applied to any split."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from app.decision.artifact import Artifact, PolicyFit, Thresholds
from app.decision.calibrator import Calibrator
from app.decision.foresight import Foresight
from app.errors import DataError
from app.refit.exits import fit_exits, foretell_exits
from app.refit.ledger import PROBE_COUNTS, Floats, Foretold
from app.refit.options import Options
from app.refit.pregate import fit_foresight, foretell
from app.refit.split import Train
from app.refit.table import Outcomes


@dataclass(frozen=True, eq=False, slots=True)
class Foretellers:
    """P(right) by the question alone, and by the first tokens of its probe; each where it was learned."""

    foresight: Foresight | None = None
    exits: Mapping[int, Calibrator] = field(default_factory=dict)

    def apply(self, outcomes: Outcomes) -> Foretold:
        """What they say of a table; nothing about questions that were not embedded."""
        p0 = p1 = None
        if self.foresight is not None and outcomes.asked is not None:
            p0, p1 = foretell(self.foresight, outcomes.asked)
        return Foretold(p0, p1, foretell_exits(self.exits, outcomes))

    def used_by(self, policies: Iterable[PolicyFit]) -> "Foretellers":
        """What of this the thresholds of any policy compare."""
        earlies = [fit.thresholds.early for fit in policies if fit.thresholds.early is not None]
        lengths = {length for early in earlies for length, _ in early.exits}
        return Foretellers(
            self.foresight if any(early.unasked > 0.0 for early in earlies) else None,
            {length: calibrator for length, calibrator in self.exits.items() if length in lengths},
        )


def of_artifact(artifact: Artifact) -> Foretellers:
    """Those that an artifact carries."""
    return Foretellers(artifact.foresight, artifact.exits)


def without_foresight(thresholds: Thresholds) -> Thresholds:
    """The same thresholds where questions are not embedded: every one is probed."""
    early = thresholds.early
    if early is None:
        return thresholds
    return replace(thresholds, early=replace(early, unasked=0.0) if early.exits else None)


def learn(
    train: Train, names: Sequence[str], options: Options, say: Callable[[str], None]
) -> tuple[Foretellers, Foretold, dict[str, Any]]:
    """Learn what the options want and the table allows; with its out-of-fold probabilities, and a description."""
    outcomes, foresight, described = train.outcomes, None, dict[str, Any]()
    p0 = p1 = None
    if wanted(options.pregate, options) and (outcomes.asked is not None or options.pregate):
        foresight, scored = fit_foresight(outcomes, say)
        p0, p1 = (scored[name].out_of_fold if name in scored else None for name in ("p0", "p1"))
        described = {
            f"question_{name}": {"penalty": each.penalty, "brier_out_of_fold": each.brier}
            for name, each in scored.items()
        }
    exits: dict[int, Calibrator] = {}
    prefixes: dict[int, Floats] = {}
    if wanted(options.exits, options):
        exits, prefixes = fit_exits(outcomes, names, options.methods, say)
        described |= {f"exit_{length}": {"method": each.method} for length, each in exits.items()}
        if options.exits and not exits:
            raise DataError("no exit can be fitted: the table has no prefix signals that tell anything")
    return Foretellers(foresight, exits), Foretold(p0, p1, prefixes), described


def wanted(switch: bool | None, options: Options) -> bool:  # noqa: FBT001
    """Whether an operator wants it; who does not say wants it where the objective sees a probe that is spared."""
    return options.objective in PROBE_COUNTS if switch is None else switch
