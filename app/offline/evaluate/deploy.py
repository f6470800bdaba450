"""Operating points: held out (train fits, validation chooses, test is used once), and on the whole table."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from app.core.artifact import FIXED, Artifact, LadderFit, PolicyFit, Thresholds
from app.core.cost import Objective
from app.core.heads import Blend, Head
from app.core.policy import Policy
from app.errors import DataError
from app.offline.evaluate.study import Study
from app.offline.refit.choose import grid
from app.offline.refit.fit import Method
from app.offline.refit.heads import predict_many
from app.offline.refit.metrics import Draws
from app.offline.refit.options import Options
from app.offline.refit.refit import refit
from app.offline.refit.splits import Ledger, Route, Test, Train, passage_costs, per_passage, split, units
from app.offline.table import Floats, Outcomes


@dataclass(frozen=True, eq=False, slots=True)
class Point:
    """One operating point: its thresholds, what each question reads, and the figures of the report."""

    name: str
    thresholds: Thresholds
    chosen_on: str
    route: Route
    right: Floats
    figures: dict[str, Any]

    @property
    def skipped(self) -> Floats:
        """1.0 where no passage is read, else 0.0."""
        return np.where(self.route == 0, 1.0, 0.0)


@dataclass(frozen=True, eq=False, slots=True)
class Deployed:
    """What would be served: how p0 is computed, and the operating points on the whole table.

    `p` is from the calibrator that the thresholds belong to; on the probabilities of another calibrator they mean
    nothing. `out_of_fold` predicts each answer by a head that was not fitted on it.
    """

    figures: dict[str, Any]
    p: Floats
    out_of_fold: Floats
    # `blend`, which uses all evidence of an answer, or a method on the named signals.
    method: Method | Literal["blend"]
    names: tuple[str, ...]
    points: Mapping[str, Point]

    @property
    def point(self) -> Point:
        """The point that other parts describe: the first that is not a fixed k, else the first."""
        gates = [point for point in self.points.values() if point.thresholds not in FIXED]
        return gates[0] if gates else next(iter(self.points.values()))


def deploy(study: Study, main: str, resamples: int, given: Artifact | None = None) -> Deployed:
    """Refit on the table, and evaluate what would be served, and the published matching rule on the same splits.

    The thresholds of a given artifact come first among the operating points.
    """
    first = [] if given is None else [_point_of(study, given)]
    try:
        artifact, summary = refit(study.whole, _options(study.ks))
    except DataError as error:
        return _without_splits(study, main, str(error), first)
    out_of_fold = study.blend(0, 0)
    if out_of_fold is None:
        return _without_splits(study, main, "a head of closed-book answers cannot be fitted out-of-fold", first)
    p = probabilities(artifact.p0, study.outcomes)
    _, validation, test = (part.outcomes for part in split(study.outcomes, groups=len(set(study.whole.groups))))
    on_validation, on_test = (probabilities(artifact.p0, part) for part in (validation, test))
    rules = {name: _matching(validation, on_validation, graded=name == "graded") for name in ("binary", "graded")}
    test_ledger = Ledger(Test(test), on_test, units(test), {})
    test_draws = Draws(test_ledger.units, resamples)
    graded = artifact.policies["graded"]
    names = artifact.p0.features if isinstance(artifact.p0, Blend) else ()
    figures: dict[str, Any] = {
        "protocol": "train fits, validation chooses, test is evaluated once; split by a hash of the group",
        "splits": artifact.report["splits"],
        "p0": {"method": artifact.p0.method, "signals": list(names)},
        "fallback": f"always-k{artifact.fallback_k}",
        "policies": {name: describe(fit) for name, fit in artifact.policies.items()},
        "abstention": asdict(artifact.abstention),
        "test": artifact.report["test"],
        "matched": {
            name: {"n": len(test)} | _point(test_ledger, test_draws, name, thresholds, "validation").figures
            for name, thresholds in rules.items()
        },
        "notes": list(summary.notes),
    }
    ledger, points = _ledger(study, p), list(first)
    if graded.certificate:
        points.append(_point(ledger, study.draws, "served", graded.thresholds, "validation, certified"))
    elif artifact.fallback_k in study.ks:
        fixed = FIXED[study.ks.index(artifact.fallback_k)]
        points.append(_point(ledger, study.draws, "served", fixed, "train, as the fallback"))
    points += [
        _point(ledger, study.draws, f"matched_{name}", rules[name], "validation") for name in ("graded", "binary")
    ]
    return Deployed(figures | _whole_table(points), p, out_of_fold, "blend", names, {one.name: one for one in points})


def probabilities(head: Head, outcomes: Outcomes) -> Floats:
    """P(right) of the closed-book answers of a table."""
    return predict_many(head, outcomes.evidence, len(outcomes))


def describe(fit: PolicyFit | LadderFit) -> dict[str, Any]:
    """A fitted policy as in the report."""
    return {
        "thresholds": asdict(fit.thresholds) if isinstance(fit, PolicyFit) else None,
        "certificate": asdict(fit.certificate) if fit.certificate else None,
        "uncertified_reason": fit.uncertified_reason,
        "labels_needed": asdict(fit.labels_needed) if fit.labels_needed else None,
    }


def _options(ks: tuple[int, int, int]) -> Options:
    """Certify the paper's policy, and minimise passages, which every table can count."""
    return Options(
        name="evaluation",
        created="1970-01-01T00:00:00+00:00",
        policy=Policy.GRADED,
        objective=Objective.MONEY,
        tariff=per_passage(ks),
    )


def _without_splits(study: Study, main: str, why: str, first: list[Point]) -> Deployed:
    """The table is too small to split: the published rule on out-of-fold probabilities, which is optimistic."""
    p = study.predict("logistic", (main,), 0, 0)
    assert p is not None
    points = list(first)
    for name in ("graded", "binary"):
        thresholds = _matching(study.outcomes, p, graded=name == "graded")
        points.append(_point(_ledger(study, p), study.draws, f"matched_{name}", thresholds, "the whole table"))
    figures = {"unavailable_reason": why} | _whole_table(points)
    return Deployed(figures, p, p, "logistic", (main,), {one.name: one for one in points})


def _whole_table(points: list[Point]) -> dict[str, Any]:
    return {"whole_table": {point.name: {"chosen_on": point.chosen_on} | point.figures for point in points}}


def shares(route: Route, ks: tuple[int, int, int], weights: Floats) -> dict[str, float]:
    """How often each number of passages is read, and the budget used on the three axes."""
    found = {f"k{k}": float(weights @ (route == k)) for k in ks}
    most = ks[-1]
    return found | {
        "full": found[f"k{most}"],
        "call": sum(share for name, share in found.items() if name != "k0"),
        "passage": sum(found[f"k{k}"] * k / most for k in set(ks)),
    }


def _ledger(study: Study, p: Floats) -> Ledger[Test]:
    return Ledger(Test(study.outcomes), p, study.units, {})


def _point(ledger: Ledger[Test], draws: Draws, name: str, thresholds: Thresholds, chosen_on: str) -> Point:
    route, most = ledger.route(thresholds), ledger.ks[-1]
    right = ledger.right(route)
    figures = {
        "thresholds": asdict(thresholds),
        "accuracy": draws.interval(right),
        f"minus_k{most}": draws.interval(right - ledger.fixed(most)),
        "shares": shares(route, ledger.ks, ledger.units.weights),
    }
    return Point(name, thresholds, chosen_on, route, right, figures)


def _point_of(study: Study, artifact: Artifact) -> Point:
    thresholds = artifact.policies["graded"].thresholds
    p = probabilities(artifact.p0, study.outcomes)
    return _point(_ledger(study, p), study.draws, "artifact", thresholds, "its own data")


def _matching(outcomes: Outcomes, p: Floats, *, graded: bool) -> Thresholds:
    # The published rule tunes on the rows it validates on, so these are its train split.
    ledger = Ledger(Train(outcomes), p, units(outcomes), passage_costs(outcomes))
    return match(ledger, graded=graded, floor=ledger.mean(ledger.fixed(outcomes.ks[-1])))


def match(ledger: Ledger[Train], *, graded: bool, floor: float) -> Thresholds:
    """The published rule: the cheapest thresholds that reach an accuracy; the largest fixed k if none do.

    It chooses by the same accuracy that it promises, so its promise is optimistic.
    """
    pairs = grid(ledger, graded=graded)
    good = np.flatnonzero(pairs.accuracy >= floor - 1e-12)
    if not good.size:
        return FIXED[-1]
    return pairs.thresholds(good[np.lexsort((-pairs.accuracy[good], np.round(pairs.cost[good], 12)))[0]])


def confidences(study: Study, deployed: Deployed, point: Point) -> tuple[dict[str, Floats], dict[str, str]]:
    """The proper and the naive confidence of each answer at a point, and which signal the proper one uses.

    If the answers from k passages have no signal of their own, the closed-book signal predicts them.
    """

    def predict(source: int, k: int) -> Floats | None:
        if deployed.method == "blend":
            return study.blend(source, k)
        return study.predict(deployed.method, deployed.names, source, k)

    proper, confidence_source = deployed.out_of_fold, {"k0": "its own signal"}
    for k in study.ks[1:]:
        predicted, confidence_source[f"k{k}"] = predict(k, k), "its own signal"
        if predicted is None:
            predicted = predict(0, k)
            confidence_source[f"k{k}"] = (
                "none: too few right or wrong answers"
                if predicted is None
                else f"the closed-book signal, as the table has none for k={k}"
            )
        proper = np.where(point.route == k, np.nan if predicted is None else predicted, proper)
    return {"proper": proper, "naive": deployed.out_of_fold}, confidence_source
