"""The graded policy by each of its means: whole probes, probes that may be cut short, and questions judged before them.

Each variant has a path of its own on train, a certificate and an abstention of its own on validation. A running gateway
chooses among them by what they cost, and what they cost depends on how far validation let each be walked. So they share
one delta: that any of them falls short is no more likely than it would be of one alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from app.decision.artifact import Abstention, Early, Flow, PolicyFit, Thresholds, Variant
from app.decision.cost import Tariff
from app.decision.policy import foregone
from app.refit.abstain import Given
from app.refit.certify import certify_abstention, certify_policy
from app.refit.choose import lay_abstention
from app.refit.ledger import ACTIONS, Floats, Foretold, Ledger, S, advances, gate_costs, is_fixed, pick
from app.refit.options import Options
from app.refit.paths import Step, foreseen, lay_path
from app.refit.split import Train, Validation

Rows = NDArray[np.bool_]
_FREE = Tariff()


@dataclass(frozen=True, eq=False, slots=True)
class Laid:
    """A path that validation may walk, and what the gateway may come to serve once it has.

    That is the fallback (None), or a step that train foresees.
    """

    path: tuple[Step, ...]
    possible: tuple[Thresholds | None, ...]


def lay(ledger: Ledger[Train], options: Options) -> Laid:
    """The path of the graded policy."""
    path = lay_path(ledger, graded=True, references=options.references, epsilon=options.epsilon)
    ahead = foreseen(ledger, path, options.references, options.epsilon)
    return Laid(path, (None, *(step.thresholds for step in path[:ahead])))


def lay_fewer(ledger: Ledger[Train], options: Options) -> list[Laid]:
    """The paths by fewer means than the ledger has, the fewest first; none where it has whole probes alone."""
    everything = ledger.foretold
    fewer = (Foretold(), Foretold(prefixes=everything.prefixes), replace(everything, prefixes={}))
    by_means = {_means(foretold): foretold for foretold in fewer if _means(foretold) != _means(everything)}
    return [lay(replace(ledger, foretold=foretold), options) for foretold in by_means.values()]


def walk_policy(ledger: Ledger[Validation], path: Sequence[Step], options: Options) -> PolicyFit:
    """How far a path holds."""
    fit, _ = certify_policy(
        ledger,
        path,
        references=options.references,
        epsilon=options.epsilon,
        delta=options.delta,
        objective=options.objective,
    )
    return fit


@dataclass(frozen=True, eq=False, slots=True)
class Confidences:
    """How sure each answer is, by the passages it was read from: out of fold on train, and on validation."""

    train: Mapping[int, Floats]
    validation: Mapping[int, Floats]


def walk_abstention(
    train: Ledger[Train],
    validation: Ledger[Validation],
    fit: PolicyFit,
    possible: Sequence[Thresholds | None],
    confidences: Confidences,
    *,
    fallback: int,
    options: Options,
) -> Abstention:
    """Walk the path of abstention, which train lays, under the policy that will really be served."""

    def given(ledger: Ledger[S], end: Thresholds | None, confidence: Mapping[int, Floats]) -> Given:
        route = ledger.serve(end, fallback)
        return Given(ledger.right(route), pick(confidence, route))

    ends = {end: given(validation, end, confidences.validation) for end in {served(fit), *possible}}
    path = lay_abstention(
        [given(train, end, confidences.train) for end in possible], train.units, target=options.risk_target
    )
    return certify_abstention(
        ends[served(fit)],
        [ends[end] for end in possible],
        validation.units,
        path,
        target=options.risk_target,
        delta=options.risk_delta,
    )


def served(fit: PolicyFit) -> Thresholds | None:
    """The thresholds that may be served; None where the fallback action is."""
    return fit.thresholds if fit.certificate is not None else None


def worth_having(found: Sequence[tuple[PolicyFit, Abstention]], ledger: Ledger[Validation]) -> dict[str, Variant]:
    """Those that are certified and gate, the first by each means; none unless the very first is among several."""
    gating = [each for each in found if each[0].certificate is not None and is_fixed(each[0].thresholds) is None]
    variants: dict[str, Variant] = {}
    for fit, abstention in gating:
        variants.setdefault(fit.thresholds.means, Variant(fit, abstention, flow(ledger, fit.thresholds)))
    return variants if len(variants) > 1 and gating[0] is found[0] else {}


def flow(ledger: Ledger[S], thresholds: Thresholds) -> Flow:
    """Which way the questions of a split go, as shares of its groups."""
    route, early = ledger.route(thresholds), thresholds.early or Early()
    unasked = ledger.unasked(early)
    if early.unasked > 0.0 and foregone(thresholds) is not None:
        unasked = np.ones_like(unasked)
    cut = (ledger.settled(early) >= 0) & ~unasked

    def share(rows: Rows) -> float:
        # Rounded, so that the same table gives the same bytes everywhere.
        return round(ledger.mean(rows.astype(np.float64)), 9)

    return Flow(
        unasked1=share(unasked & (route == 1)),
        unasked5=share(unasked & (route == 5)),
        k0=share(~unasked & (route == 0)),
        k1=share(~unasked & (route == 1)),
        k5=share(~unasked & (route == 5)),
        cut=share(cut),
        spent=round(_spent(ledger, thresholds, cut), 9),
    )


def _spent(ledger: Ledger[S], thresholds: Thresholds, cut: Rows) -> float:
    """How much of the time of a whole probe one that is cut short takes; all of it where the table tells no times."""
    outcomes = ledger.split.outcomes
    if not cut.any() or not all(np.isfinite(outcomes.ms[k]).any() for k in ACTIONS):
        return 1.0
    in_time = replace(
        ledger,
        costs=gate_costs(outcomes, "latency", _FREE),
        advances=advances(outcomes, "latency", _FREE, ledger.foretold.prefixes),
    )
    whole = in_time.costs[0][cut].sum()
    return float(min(1.0, in_time.probing(thresholds)[cut].sum() / whole)) if whole > 0.0 else 1.0


def _means(foretold: Foretold) -> tuple[bool, bool]:
    return foretold.p0 is not None, bool(foretold.prefixes)
