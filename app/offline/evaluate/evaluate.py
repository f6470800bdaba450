"""The published tables, and more, for any outcome table: one JSON object, see `docs/evaluate.md`.

Diagnostic figures are out-of-fold over five stratified folds in row order; only `deploy` holds rows out. Each group has
weight one in every mean. Intervals are the middle 95 % of a bootstrap over groups, with the same draws for all figures.
What is resampled on cells (AUROC and AURC on 200, frontiers on 48 cells and 200 budgets) is centred on the exact value.

An area is the trapezoid through the points that thresholds can reach. Where ties leave few points, the straight line
between two binary points, which no threshold reaches, can be above what grading adds in between.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from app.core.artifact import Artifact
from app.core.labels import Rule
from app.core.signals import NAMES
from app.offline.evaluate.deploy import Deployed, Point, confidences, deploy, shares
from app.offline.evaluate.frontier import AXES, binary, envelope, graded, ladder
from app.offline.evaluate.study import FUSED, Assessed, Study, assess_all, main_signal, make_study, methods, sizes
from app.offline.refit.metrics import RESAMPLES, compare_confidences, divide, reliability, to_json
from app.offline.table import Floats, Labels, Outcomes

BARS = 20
DRAFTS = (32, 64, 128)
_CURVE = np.linspace(0.0, 1.0, 101)
_MAX_BUCKETS = 12
_QUANTILES = 4
_COLUMNS = {"ms": "k{k}.ms", "tokens": "k{k}.prompt_tokens and k{k}.completion_tokens"}


def evaluate(
    outcomes: Outcomes,
    *,
    resamples: int = RESAMPLES,
    rule: Rule | None = None,
    artifact: Artifact | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Compute everything that `docs/evaluate.md` names.

    A `rule` labels the answers again; otherwise labels stay as collected. The thresholds of an artifact are one more
    operating point, and the one that tags, harm and abstention describe.
    """
    study = make_study(outcomes, resamples, rule)
    on_progress("assessing signals")
    assessed, unassessed = assess_all(study)
    main = main_signal(assessed)
    on_progress("choosing and testing operating points")
    deployed = deploy(study, main, resamples, artifact)
    on_progress("computing abstention, harm and cost")
    compared, confidence_source = confidences(study, deployed, deployed.point)
    selective, risks = compare_confidences(deployed.point.right, compared, study.draws)
    tags = by_tag(study, deployed.point)
    present = tuple(name for name in NAMES if name in assessed)
    accuracy = {f"k{k}": study.draws.interval(right) for k, right in sorted(study.right.items())}
    result: dict[str, Any] = {
        "n": len(study.outcomes),
        "out_of_corpus": study.outside,
        "ks": list(study.ks),
        "groups": study.units.count,
        "labels": rule or "as collected",
        "protocol": {
            "diagnostic": "out-of-fold, 5 stratified folds in row order, groups kept together",
            "intervals": f"95 %, bootstrap over groups, {resamples} draws",
            "weights": "each group has weight one",
        },
        "accuracy": {k: interval.value for k, interval in accuracy.items()},
        "accuracy_intervals": accuracy,
        "main": main,
        "signals": {name: each.figures for name, each in assessed.items()},
        "unassessed": unassessed,
        "deltas": _deltas(study, assessed, main, deployed),
        "deploy": deployed.figures,
        "selective": {"point": deployed.point.name, "confidence_source": confidence_source} | selective,
        "harm": harm(study, deployed),
    }
    on_progress("comparing methods and sizes")
    result |= {
        "methods": methods(study, main, present),
        "sizes": sizes(study, main),
        "popularity": tags.pop("popularity", None),
        "tags": tags,
        "larger_k": larger_ks(study),
        "cost": cost(study, deployed),
        "drafts": drafts(study, deployed.point),
        "curves": _curves(study, assessed[main], main, deployed) | {"risk": risks},
    }
    return cast("dict[str, Any]", to_json(result))


def _deltas(study: Study, assessed: dict[str, Assessed], main: str, deployed: Deployed) -> dict[str, Any]:
    """Paired differences of areas. The envelope over pairs gains even on noise: so there is also one on test."""

    def difference(one: str, axis: str, other: str, against: str) -> object:
        a, b = assessed[one], assessed[other]
        return study.draws.centred(a.areas[axis] - b.areas[against], a.drawn[axis] - b.drawn[against])

    return {
        "graded_minus_binary": {
            axis: {against: difference(main, axis, main, against) for against in ("binary", "binary_enveloped")}
            for axis in AXES
        },
        "graded_minus_binary_on_test": deployed.figures.get("test", {}).get("graded_against_binary"),
    } | {
        f"{name}_minus": {
            other: {axis: difference(name, axis, other, axis) for axis in ("binary", "passage")}
            for other in assessed
            if other != name
        }
        for name in (main, FUSED)
        if name in assessed
    }


def _curves(study: Study, ours: Assessed, main: str, deployed: Deployed) -> dict[str, Any]:
    right = {k: study.right[k] for k in study.ks}
    rungs = ladder(ours.p, right, study.weights)
    raw = study.outcomes.signals[0][main]
    scaled = (raw - np.nanmin(raw)) / max(float(np.nanmax(raw) - np.nanmin(raw)), 1e-12)
    oracle = binary(ladder(right[0] - right[study.ks[-1]], right, study.weights))
    frontiers = {"binary": envelope(binary(rungs)), **{axis: graded(rungs, axis) for axis in AXES}, "oracle": oracle}
    return {
        "p0": {"method": deployed.method, "signals": list(deployed.names)},
        "reliability": {"raw": reliability(scaled, study.labels), "calibrated": reliability(ours.p, study.labels)},
        "histogram": histogram(deployed.p, study.labels),
        "frontier": {"x": _CURVE.tolist()}
        | {name: np.interp(_CURVE, curve.x, curve.accuracy).tolist() for name, curve in frontiers.items()},
    }


def histogram(p: Floats, labels: Labels) -> dict[str, Any]:
    """How many right and wrong closed-book answers fall into each of 20 bins of p, and how many have no p."""
    known = np.isfinite(p)
    bars = {
        kind: np.histogram(p[known & rows], BARS, (0.0, 1.0))[0].tolist()
        for kind, rows in (("right", labels), ("wrong", ~labels))
    }
    return bars | {"missing": int((~known).sum())}


def harm(study: Study, deployed: Deployed) -> dict[str, Any]:
    """How often passages turn a right closed-book answer wrong, or a wrong one right; how much harm a gate avoids."""
    _, few, many = study.ks
    interval = study.draws.interval
    result: dict[str, Any] = {
        "definitions": {
            "harm_of_all": "harmed, of all questions: P(y0=1 and yk=0)",
            "harm_given_right": "harmed, of those right closed-book: P(yk=0 | y0=1)",
            "rescue_of_all": "rescued, of all questions: P(y0=0 and yk=1)",
            "rescue_given_wrong": "rescued, of those wrong closed-book: P(yk=1 | y0=0)",
            "saved": f"of the questions with y0=1 and y{many}=0, the share answered closed-book at the operating point",
        }
    }
    y0 = study.right[0]
    for k in (many, few):
        yk = study.right[k]
        cells = {f"y0={a},y{k}={b}": (y0 == a) & (yk == b) for a in (1, 0) for b in (1, 0)}
        result[f"k{k}"] = {
            "harm_of_all": interval(y0 * (1.0 - yk)),
            "harm_given_right": interval(1.0 - yk, y0),
            "rescue_of_all": interval((1.0 - y0) * yk),
            "rescue_given_wrong": interval(yk, 1.0 - y0),
            "matrix": {
                name: {"n": int(rows.sum()), "share": interval(rows.astype(np.float64))} for name, rows in cells.items()
            },
        }
    harmed = y0 * (1.0 - study.right[many])
    result["saved"] = {point.name: interval(point.skipped, harmed) for point in deployed.points.values()}
    return result


def by_tag(study: Study, point: Point) -> dict[str, list[dict[str, Any]]]:
    """Accuracy and skip rate in each bucket of each tag with few values; numbers are split at their quartiles."""
    tags = study.outcomes.tags
    found = {}
    for key in sorted({key for row in tags for key in row}):
        buckets = _buckets([row.get(key) for row in tags])
        if buckets is not None:
            names, code = buckets
            rows = [_bucket(study, point, name, code == number) for number, name in enumerate(names)]
            # Names have no order of their own: sort by closed-book accuracy.
            numeric = any(isinstance(row.get(key), int | float) for row in tags)
            found[key] = rows if numeric else sorted(rows, key=lambda row: -(row["accuracy"]["k0"].value or 0.0))
    return found


def _buckets(values: list[Any]) -> tuple[list[str], NDArray[np.intp]] | None:
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    given = {str(v) for v in values if v is not None}
    if len(numbers) == sum(v is not None for v in values) and len(given) > _MAX_BUCKETS:
        edges = np.unique(np.quantile(numbers, np.linspace(0.0, 1.0, _QUANTILES + 1)))
        place = [
            -1 if v is None else int(np.clip(np.searchsorted(edges, v, "right") - 1, 0, len(edges) - 2)) for v in values
        ]
        return [f"{a:g} to {b:g}" for a, b in pairwise(edges)], np.array(place, dtype=np.intp)
    if not 2 <= len(given) <= _MAX_BUCKETS:
        return None
    names = sorted(given)
    return names, np.array([-1 if v is None else names.index(str(v)) for v in values], dtype=np.intp)


def _bucket(study: Study, point: Point, name: str, among: Labels) -> dict[str, Any]:
    rows = among.astype(np.float64)
    accuracy = {f"k{k}": study.draws.interval(study.right[k], rows) for k in study.ks}
    return {
        "bucket": name,
        "n": int(among.sum()),
        "groups": len({group for group, here in zip(study.outcomes.groups, among, strict=True) if here}),
        "accuracy": accuracy | {"gate": study.draws.interval(point.right, rows)},
        "skip": study.draws.interval(point.skipped, rows),
    }


def larger_ks(study: Study) -> dict[str, Any]:
    """Every collected k above the largest of the policy, compared with that one on the same questions."""
    most = study.ks[-1]
    known = study.right[most]
    return {
        f"k{k}": {
            "accuracy": study.draws.interval(right),
            f"minus_k{most}": study.draws.interval(right - known),
            f"right_at_{most}_wrong_here": study.draws.interval(known * (1.0 - right)),
            f"wrong_at_{most}_right_here": study.draws.interval((1.0 - known) * right),
        }
        for k, right in sorted(study.right.items())
        if k > most
    }


def cost(study: Study, deployed: Deployed) -> dict[str, Any]:
    """What a probe costs compared with reading, and the skip rate from which gating pays; null if not measured."""
    result: dict[str, Any] = {"unavailable_reason": {}}
    for unit in ("ms", "tokens"):
        columns = {k: _spent(study, unit, k) for k in study.ks}
        missing = [k for k, column in columns.items() if not np.isfinite(column).any()]
        result[unit] = None if missing else _costs(study, deployed, columns)
        if missing:
            names = ", ".join(_COLUMNS[unit].format(k=k) for k in missing)
            result["unavailable_reason"][unit] = f"the table has no {names}: collect it with `fetchwise collect`"
    return result


def _spent(study: Study, unit: str, k: int) -> Floats:
    table = study.outcomes
    return table.ms[k] if unit == "ms" else table.prompt_tokens[k] + table.completion_tokens[k]


def _mean(study: Study, column: Floats) -> Floats:
    """The mean of the rows that have a value, in every draw; the table itself first."""
    return study.draws.mean(column, np.isfinite(column).astype(np.float64))


def _costs(study: Study, deployed: Deployed, columns: dict[int, Floats]) -> dict[str, Any]:
    drawn = {k: _mean(study, column) for k, column in columns.items()}
    none, few, many = study.ks
    mean = {k: float(values[0]) for k, values in drawn.items()}
    gates = {}
    for point in deployed.points.values():
        read = shares(point.route, study.ks, study.weights)
        spent = mean[none] + read[f"k{few}"] * mean[few] + read[f"k{many}"] * mean[many]
        gates[point.name] = {"skip": read["k0"], f"gate_over_always_k{many}": spent / mean[many]}
    return {
        "c_cb": study.draws.centred(mean[none], drawn[none]),
        **{f"c_ob{k}": study.draws.centred(mean[k], drawn[k]) for k in (few, many)},
        # What is measured for k > 0 includes retrieval.
        "retrieval": f"inside c_ob{few} and c_ob{many}",
        "break_even_skip": study.draws.centred(mean[none] / mean[many], divide(drawn[none], drawn[many])),
        "gates": gates,
    }


def drafts(study: Study, point: Point) -> dict[str, Any] | None:
    """Tokens of a question with the closed-book probe, and with a prefix draft of 32, 64 or 128 tokens instead.

    All use the retrieval rate of the operating point. A draft counts at its full length, as published, and is
    discarded; the probe's short answer is the answer.
    """
    table = study.outcomes
    _, few, many = study.ks
    columns = [table.prompt_tokens[0], table.completion_tokens[0], *(_spent(study, "tokens", k) for k in (few, many))]
    if not all(np.isfinite(column).any() for column in columns):
        return None
    prompt, probe, *reading = (float(_mean(study, column)[0]) for column in columns)
    read = shares(point.route, study.ks, study.weights)
    after = read[f"k{few}"] * reading[0] + read[f"k{many}"] * reading[1]
    return {
        "point": point.name,
        "retrieval_rate": read["call"],
        "probe": {"generated": probe, "total": prompt + probe + after},
        **{f"draft{length}": {"generated": length, "total": prompt + length + after} for length in DRAFTS},
    }
