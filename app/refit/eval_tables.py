"""Plain tables of an evaluation: harm and rescue, audits by tag, larger k, costs, drafts."""

from itertools import pairwise
from typing import Any

import numpy as np

from app.decision.cost import Costs, Shares, break_even_skip, race, ratio, serial
from app.refit.eval_deploy import Deployed, Point, shares
from app.refit.eval_study import Study
from app.refit.fit import Floats
from app.refit.metrics import divide, interval

DRAFTS = (32, 64, 128)
_MOST_BUCKETS = 12
_QUANTILES = 4
_DOUBT = {"ms": "k{k}.ms", "tokens": "k{k}.prompt_tokens and k{k}.completion_tokens"}


def harm(study: Study, deployed: Deployed) -> dict[str, Any]:
    """How often five passages spoil or mend what the closed-book answer was, and how much of it a gate avoids."""
    result: dict[str, Any] = {
        "definitions": {
            "harm_of_all": "P(y0=1 and yk=0), over all questions",
            "harm_given_right": "P(yk=0 | y0=1), over questions answered right closed-book",
            "rescue_of_all": "P(y0=0 and yk=1), over all questions",
            "rescue_given_wrong": "P(yk=1 | y0=0), over questions answered wrong closed-book",
            "saved": "of the questions with y0=1 and y5=0, the share that the operating point answers closed-book",
        }
    }
    y0 = study.right[0]
    for k in (5, 1):
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
    harmed = y0 * (1.0 - study.right[5])
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
            found[key] = rows if numeric else sorted(rows, key=lambda row: -row["accuracy"]["k0"]["value"])
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
    accuracy = {f"k{k}": study.draws.interval(study.right[k], held) for k in (0, 1, 5)}
    return {
        "bucket": name,
        "n": int(among.sum()),
        "groups": groups,
        "accuracy": accuracy | {"gate": study.draws.interval(point.right, held)},
        "skip": study.draws.interval((point.route == 0).astype(np.float64), held),
    }


def beyond(study: Study) -> dict[str, Any]:
    """Every k above five that was collected, against five on the same questions."""
    y5 = study.right[5]
    return {
        f"k{k}": {
            "accuracy": study.draws.interval(yk),
            "minus_k5": study.draws.interval(yk - y5),
            "right_at_5_wrong_here": study.draws.interval(y5 * (1.0 - yk)),
            "wrong_at_5_right_here": study.draws.interval((1.0 - y5) * yk),
        }
        for k, yk in sorted(study.right.items())
        if k > 5
    }


def cost(study: Study, deployed: Deployed) -> dict[str, Any]:
    """The regime that the table measured: what a probe costs beside reading, and from which skip rate gating pays."""
    result: dict[str, Any] = {"why_not": {}}
    for unit in ("ms", "tokens"):
        columns = {k: _spent(study, unit, k) for k in (0, 1, 5)}
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
    # What is measured for k > 0 holds retrieval already, so that its own share is nil here.
    costs = Costs(cb=float(drawn[0][0]), ret1=0.0, ob1=float(drawn[1][0]), ret5=0.0, ob5=float(drawn[5][0]))
    gates = {}
    for point in deployed.points.values():
        read = shares(point.route, study.weights)
        share = Shares(read["k0"], read["k1"], read["k5"])
        gates[point.name] = {
            "skip": read["k0"],
            "serial_over_always_k5": ratio(serial(costs, share), costs),
            "race_over_always_k5": ratio(race(costs, share), costs),
        }
    return {
        "c_cb": interval(costs.cb, drawn[0]),
        "c_ob1": interval(costs.ob1, drawn[1]),
        "c_ob5": interval(costs.ob5, drawn[5]),
        "retrieval": "inside c_ob1 and c_ob5",
        "break_even_skip": interval(break_even_skip(costs), divide(drawn[0], drawn[5])),
        "gates": gates,
    }


def drafts(study: Study, point: Point) -> dict[str, Any] | None:
    """Tokens of a question under the closed-book probe, against a prefix draft of 32, 64 or 128 tokens.

    The retrieval rate is that of the operating point for all; a draft is counted at its full length, as published,
    and is thrown away where the probe's short answer is the answer.
    """
    table = study.outcomes
    columns = [
        table.prompt_tokens[0],
        table.completion_tokens[0],
        _spent(study, "tokens", 1),
        _spent(study, "tokens", 5),
    ]
    if not all(np.isfinite(column).any() for column in columns):
        return None
    weights = study.weights

    def mean(values: Floats) -> float:
        known = np.isfinite(values)
        return float(weights[known] @ values[known] / weights[known].sum())

    prompt, probe, one, five = (mean(column) for column in columns)
    read = shares(point.route, weights)
    after = read["k1"] * one + read["k5"] * five
    return {
        "point": point.name,
        "retrieval_rate": read["call"],
        "probe": {"generated": probe, "total": prompt + probe + after},
        **{f"draft{length}": {"generated": length, "total": prompt + length + after} for length in DRAFTS},
    }
