"""The published tables, and more, on any outcome table: one JSON object whose keys `docs/evaluate.md` explains.

Diagnostic figures are out-of-fold over five stratified folds in row order; only `deploy` holds rows out. A group
weighs one in every mean, and every interval is the middle 95 % of a bootstrap over groups on the same draws. What
is resampled on cells (AUROC and AURC on 200, frontiers on 48 cells and 200 budgets) is centred on the exact figure.

An area is the trapezoid through the points that thresholds can reach. Where ties leave few of them, the straight line
between two binary points, which no threshold reaches, can lie above what grading really adds in between.
"""

from collections.abc import Callable
from typing import Any, cast

import numpy as np

from app.core.artifact import Artifact
from app.core.labels import Rule
from app.core.signals import NAMES
from app.offline.evaluate.deploy import Deployed, confidences, deploy
from app.offline.evaluate.frontier import AXES, Curve, binary, envelope, graded, ladder
from app.offline.evaluate.study import FUSED, Assessed, Study, assess_all, main_signal, relabelled, study_of
from app.offline.evaluate.tables import beyond, by_tag, cost, drafts, harm, methods, sizes
from app.offline.refit.metrics import RESAMPLES, compare_confidences, reliability, to_json
from app.offline.table import Outcomes

_CURVE = np.linspace(0.0, 1.0, 101)
_BARS = 20


def evaluate(
    outcomes: Outcomes,
    *,
    resamples: int = RESAMPLES,
    rule: Rule | None = None,
    artifact: Artifact | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Everything that `docs/evaluate.md` names.

    With a `rule`, answers are judged again by it; else labels stay as collected. With an artifact, its thresholds
    are one more operating point, and the one that audits, harm and abstention describe.
    """
    say = on_progress or (lambda _: None)
    study = study_of(relabelled(outcomes, rule) if rule else outcomes, resamples)
    say("assessing signals")
    assessed, left_out = assess_all(study)
    main = main_signal(assessed)
    say("choosing and testing operating points")
    deployed = deploy(study, main, resamples, artifact)
    say("weighing abstention, harm and cost")
    proper, made_of = confidences(study, deployed, deployed.point)
    selective, risks = compare_confidences(deployed.point.right, proper, study.draws)
    tags = by_tag(study, deployed.point)
    present = tuple(name for name in NAMES if name in assessed)
    accuracy = {f"k{k}": study.draws.interval(right) for k, right in sorted(study.right.items())}
    result: dict[str, Any] = {
        "n": len(outcomes),
        "ks": list(study.ks),
        "groups": study.units.count,
        "labels": rule or "as collected",
        "protocol": {
            "diagnostic": "out-of-fold, 5 stratified folds in row order, groups whole",
            "intervals": f"95 %, bootstrap over groups, {resamples} draws",
            "weights": "a group weighs one",
        },
        "accuracy": {k: known.value for k, known in accuracy.items()},
        "accuracy_intervals": accuracy,
        "main": main,
        "signals": {name: found.figures for name, found in assessed.items()},
        "left_out": left_out,
        "deltas": _deltas(study, assessed, main, deployed),
        "deploy": deployed.figures,
        "selective": {"point": deployed.point.name, "made_of": made_of} | selective,
        "harm": harm(study, deployed),
    }
    say("comparing methods and sizes")
    result |= {
        "methods": methods(study, main, present),
        "sizes": sizes(study, main),
        "popularity": tags.pop("popularity", None),
        "tags": tags,
        f"beyond_k{study.ks[-1]}": beyond(study),
        "cost": cost(study, deployed),
        "drafts": drafts(study, deployed.point),
        "curves": _curves(study, assessed[main], main, deployed) | {"risk": risks},
    }
    return cast("dict[str, Any]", to_json(result))


def _deltas(study: Study, assessed: dict[str, Assessed], main: str, deployed: Deployed) -> dict[str, Any]:
    """Differences on the same draws. The envelope over pairs gains even on noise: hence the one on test beside it."""
    ours, interval = assessed[main], study.draws.centred
    found: dict[str, Any] = {
        "graded_minus_binary": {
            axis: {
                against: interval(ours.areas[axis] - ours.areas[against], ours.drawn[axis] - ours.drawn[against])
                for against in ("binary", "binary_enveloped")
            }
            for axis in AXES
        },
        "graded_minus_binary_on_test": deployed.figures.get("test", {}).get("graded_against_binary"),
    }
    for name in (main, FUSED):
        if name in assessed:
            found[f"{name}_minus"] = {
                other: {
                    axis: interval(
                        assessed[name].areas[axis] - against.areas[axis],
                        assessed[name].drawn[axis] - against.drawn[axis],
                    )
                    for axis in ("binary", "passage")
                }
                for other, against in assessed.items()
                if other != name
            }
    return found


def _curves(study: Study, ours: Assessed, main: str, deployed: Deployed) -> dict[str, Any]:
    right = {k: study.right[k] for k in study.ks}
    rungs = ladder(ours.p, right, study.weights)
    raw = study.outcomes.signals[0][main]
    scaled = (raw - np.nanmin(raw)) / max(float(np.nanmax(raw) - np.nanmin(raw)), 1e-12)
    oracle = binary(ladder(right[0] - right[study.ks[-1]], right, study.weights))
    known = deployed.p[np.isfinite(deployed.p)]
    frontiers = {"binary": envelope(binary(rungs)), **{axis: graded(rungs, axis) for axis in AXES}, "oracle": oracle}
    return {
        "p0": {"method": deployed.method, "signals": list(deployed.names)},
        "reliability": {
            "raw": reliability(scaled, study.labels),
            "calibrated": reliability(ours.p, study.labels),
        },
        "histogram": {
            kind: np.histogram(deployed.p[at & np.isfinite(deployed.p)], _BARS, (0.0, 1.0))[0].tolist()
            for kind, at in (("right", study.labels), ("wrong", ~study.labels))
        }
        | {"missing": len(deployed.p) - len(known)},
        "frontier": {"x": _CURVE.tolist()} | {name: _drawn(curve) for name, curve in frontiers.items()},
    }


def _drawn(curve: Curve) -> list[float]:
    return [float(value) for value in np.interp(_CURVE, curve.x, curve.accuracy)]
