"""The tables of an evaluation: methods, how many labels they need, harm, audits by tag, larger k, costs, drafts."""

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.errors import DataError
from app.offline.evaluate.deploy import Deployed, Point, shares
from app.offline.evaluate.study import Study
from app.offline.refit.fit import FUSIONS, METHODS, Method, fit, out_of_fold, predict_many
from app.offline.refit.metrics import divide, ece, losses, quality
from app.offline.table import Floats

SIZES = (50, 100, 200, 400, 800, 1_600, 3_200)
REPEATS = 20
_HELD_OUT = 0.3
_SIZED: tuple[Method, ...] = ("logistic", "isotonic")

DRAFTS = (32, 64, 128)
_MOST_BUCKETS = 12
_QUANTILES = 4
_DOUBT = {"ms": "k{k}.ms", "tokens": "k{k}.prompt_tokens and k{k}.completion_tokens"}


def methods(study: Study, main: str, present: tuple[str, ...]) -> dict[str, Any]:
    """AUROC, ECE, Brier and NLL of every method, out-of-fold on the main signal, or on all of them for a fusion."""
    found: dict[str, Any] = {"signal": main}
    for method in METHODS:
        names = present if method in FUSIONS else (main,)
        if method in FUSIONS and len(present) < 2:
            continue
        try:
            p = out_of_fold(method, names, study.outcomes.signals[0], study.labels, study.fold)
        except DataError:
            continue  # a fold without both kinds of answers
        found[method] = quality(p, study.labels, study.draws)
    return found


def sizes(study: Study, main: str) -> dict[str, Any]:
    """ECE and Brier score on 30 % of the groups, when so many of the others are fitted on.

    Mean and standard deviation over twenty draws of both: what the luck of the draw does.
    """
    code, count = study.units.codes, study.units.count
    rng = np.random.default_rng(0)
    drawn = [rng.permutation(count)[code] for _ in range(REPEATS)]
    pool = int(count * (1.0 - _HELD_OUT))
    table = []
    for size in (*(size for size in SIZES if size < pool), pool):
        for method in _SIZED:
            parted = ((np.flatnonzero(place < size), np.flatnonzero(place >= pool)) for place in drawn)
            scores = [_scores(study, (method, main), rows, held) for rows, held in parted]
            known = np.array([score for score in scores if score is not None])
            if len(known):
                ece_, brier = _spread(known[:, 0]), _spread(known[:, 1])
                table.append({"groups": size, "method": method, "ece": ece_, "brier": brier})
    return {"signal": main, "held_out_groups": count - pool, "repeats": REPEATS, "rows": table}


def _scores(
    study: Study, source: tuple[Method, str], rows: NDArray[np.intp], held: NDArray[np.intp]
) -> tuple[float, float] | None:
    method, main = source
    column = study.outcomes.signals[0][main]
    try:
        fitted = fit(method, (main,), {main: column[rows]}, study.labels[rows])
    except DataError:
        return None  # this draw has answers of one kind only
    p, labels = predict_many(fitted, {main: column[held]}, len(held)), study.labels[held]
    weights = study.weights[held] * np.isfinite(p)
    brier = np.where(np.isfinite(p), losses(p, labels)["brier"], 0.0)
    return ece(p, labels, study.weights[held]), float(weights @ brier / weights.sum())


def _spread(values: Floats) -> dict[str, float]:
    return {"mean": float(values.mean()), "deviation": float(values.std())}


def harm(study: Study, deployed: Deployed) -> dict[str, Any]:
    """How often passages spoil or fix what the closed-book answer was, and how much of it a gate avoids."""
    _, few, many = study.ks
    result: dict[str, Any] = {
        "definitions": {
            "harm_of_all": "P(y0=1 and yk=0), over all questions",
            "harm_given_right": "P(yk=0 | y0=1), over questions answered right closed-book",
            "rescue_of_all": "P(y0=0 and yk=1), over all questions",
            "rescue_given_wrong": "P(yk=1 | y0=0), over questions answered wrong closed-book",
            "saved": f"of the questions with y0=1 and y{many}=0, the share answered closed-book at the operating point",
        }
    }
    y0 = study.right[0]
    for k in (many, few):
        yk = study.right[k]
        result[f"k{k}"] = {
            "harm_of_all": study.draws.interval(y0 * (1.0 - yk)),
            "harm_given_right": study.draws.interval(1.0 - yk, y0),
            "rescue_of_all": study.draws.interval((1.0 - y0) * yk),
            "rescue_given_wrong": study.draws.interval(yk, 1.0 - y0),
            "matrix": {
                f"y0={a},y{k}={b}": {
                    "n": int(((y0 == a) & (yk == b)).sum()),
                    "share": study.draws.interval(((y0 == a) & (yk == b)).astype(np.float64)),
                }
                for a in (1, 0)
                for b in (1, 0)
            },
        }
    harmed = y0 * (1.0 - study.right[many])
    result["saved"] = {
        point.name: study.draws.interval((point.route == 0).astype(np.float64), harmed)
        for point in deployed.points.values()
    }
    return result


def by_tag(study: Study, point: Point) -> dict[str, list[dict[str, Any]]]:
    """Accuracy and skipping in each bucket of each tag that sorts questions into a few; numbers fall into quarters."""
    tags = study.outcomes.tags
    found = {}
    for key in sorted({key for row in tags for key in row}):
        buckets = _buckets([row.get(key) for row in tags])
        if buckets is not None:
            names, code = buckets
            rows = [_bucket(study, point, name, code == number) for number, name in enumerate(names)]
            # Names have no order of their own: what the reader knows best comes first.
            numeric = any(isinstance(row.get(key), int | float) for row in tags)
            found[key] = rows if numeric else sorted(rows, key=lambda row: -(row["accuracy"]["k0"].value or 0.0))
    return found


def _buckets(values: list[Any]) -> tuple[list[str], np.ndarray[Any, np.dtype[np.intp]]] | None:
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    given = {str(v) for v in values if v is not None}
    if len(numbers) == sum(v is not None for v in values) and len(given) > _MOST_BUCKETS:
        edges = np.unique(np.quantile(numbers, np.linspace(0.0, 1.0, _QUANTILES + 1)))
        place = [
            -1 if v is None else int(np.clip(np.searchsorted(edges, v, "right") - 1, 0, len(edges) - 2)) for v in values
        ]
        return [f"{a:g} to {b:g}" for a, b in pairwise(edges)], np.array(place, dtype=np.intp)
    if not 2 <= len(given) <= _MOST_BUCKETS:
        return None
    names = sorted(given)
    return names, np.array([-1 if v is None else names.index(str(v)) for v in values], dtype=np.intp)


def _bucket(study: Study, point: Point, name: str, among: np.ndarray[Any, np.dtype[np.bool_]]) -> dict[str, Any]:
    held = among.astype(np.float64)
    groups = len({group for group, here in zip(study.outcomes.groups, among, strict=True) if here})
    accuracy = {f"k{k}": study.draws.interval(study.right[k], held) for k in study.ks}
    return {
        "bucket": name,
        "n": int(among.sum()),
        "groups": groups,
        "accuracy": accuracy | {"gate": study.draws.interval(point.right, held)},
        "skip": study.draws.interval((point.route == 0).astype(np.float64), held),
    }


def beyond(study: Study) -> dict[str, Any]:
    """Every k above the most that a policy reads, against that many on the same questions."""
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
    """The regime that the table measured: what a probe costs beside reading, and from which skip rate gating pays."""
    result: dict[str, Any] = {"why_not": {}}
    for unit in ("ms", "tokens"):
        columns = {k: _spent(study, unit, k) for k in study.ks}
        lacking = [k for k, column in columns.items() if not np.isfinite(column).any()]
        result[unit] = None if lacking else _regime(study, deployed, columns)
        if lacking:
            names = ", ".join(_DOUBT[unit].format(k=k) for k in lacking)
            result["why_not"][unit] = f"the table has no {names}: collect it with `fetchwise collect`"
    return result


def _spent(study: Study, unit: str, k: int) -> Floats:
    table = study.outcomes
    return table.ms[k] if unit == "ms" else table.prompt_tokens[k] + table.completion_tokens[k]


def _regime(study: Study, deployed: Deployed, columns: dict[int, Floats]) -> dict[str, Any]:
    known = {k: np.isfinite(column).astype(np.float64) for k, column in columns.items()}
    drawn = {k: study.draws.mean(column, known[k]) for k, column in columns.items()}
    none, few, many = study.ks
    mean = {k: float(values[0]) for k, values in drawn.items()}
    gates = {}
    for point in deployed.points.values():
        read = shares(point.route, study.ks, study.weights)
        spent = mean[none] + read[f"k{few}"] * mean[few] + read[f"k{many}"] * mean[many]
        gates[point.name] = {"skip": read["k0"], f"gate_over_always_k{many}": spent / mean[many]}
    # What is measured for k > 0 holds retrieval already.
    return {
        "c_cb": study.draws.centred(mean[none], drawn[none]),
        **{f"c_ob{k}": study.draws.centred(mean[k], drawn[k]) for k in (few, many)},
        "retrieval": f"inside c_ob{few} and c_ob{many}",
        "break_even_skip": study.draws.centred(mean[none] / mean[many], divide(drawn[none], drawn[many])),
        "gates": gates,
    }


def drafts(study: Study, point: Point) -> dict[str, Any] | None:
    """Tokens of a question under the closed-book probe, against a prefix draft of 32, 64 or 128 tokens.

    The retrieval rate is that of the operating point for all; a draft is counted at its full length, as published,
    and is thrown away where the probe's short answer is the answer.
    """
    table = study.outcomes
    _, few, many = study.ks
    columns = [table.prompt_tokens[0], table.completion_tokens[0], *(_spent(study, "tokens", k) for k in (few, many))]
    if not all(np.isfinite(column).any() for column in columns):
        return None
    weights = study.weights

    def mean(values: Floats) -> float:
        known = np.isfinite(values)
        return float(weights[known] @ values[known] / weights[known].sum())

    prompt, probe, *reading = (mean(column) for column in columns)
    read = shares(point.route, study.ks, weights)
    after = read[f"k{few}"] * reading[0] + read[f"k{many}"] * reading[1]
    return {
        "point": point.name,
        "retrieval_rate": read["call"],
        "probe": {"generated": probe, "total": prompt + probe + after},
        **{f"draft{length}": {"generated": length, "total": prompt + length + after} for length in DRAFTS},
    }
