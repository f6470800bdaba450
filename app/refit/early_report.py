"""What the test split says of a policy that decides early: what it catches, what that spares, and what it costs."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from app.decision.artifact import Thresholds
from app.decision.cost import Tariff
from app.errors import DataError
from app.refit.holdout import resample
from app.refit.ledger import Floats, Ledger, Objective, advances, gate_costs
from app.refit.split import Test

SCHEDULES = {
    "serial": "a question is embedded, then probed, then searched and read for, each only where it must be",
    "overlap": "embedding runs beside the probe; what searching takes is not told apart in the table, and counts after",
}


def early_report(ledger: Ledger[Test], thresholds: Thresholds, whole: Thresholds, tariff: Tariff) -> dict[str, Any]:
    """Recall, the share of the probe that is spent, accuracy and cost: beside a gate that probes every question.

    A question retrieves where that gate (`whole`) sends it to the passages; caught are those of them that are settled
    early. Lost are questions that it answers closed-book and that now read. Intervals are 95 %, over groups.
    """
    assert thresholds.early is not None
    route, by_probe = ledger.route(thresholds), ledger.route(whole)
    unasked = ledger.unasked(thresholds.early)
    cut = (ledger.settled(thresholds.early) >= 0) & ~unasked
    retrieving, skipping = by_probe > 0, by_probe == 0
    columns = {
        "unasked": unasked,
        "cut": cut,
        "retrieving": retrieving,
        "skipping": skipping,
        "reached": retrieving & ~unasked,
        "caught_unasked": retrieving & unasked,
        "caught_cut": retrieving & cut,
        "lost": skipping & (unasked | cut) & (route != 0),
        "early": ledger.right(route),
        "whole": ledger.right(by_probe),
        **{f"k{k}": ledger.fixed(k) for k in (1, 5)},
    }
    costs = {axis: _costs(ledger, thresholds, whole, axis, tariff) for axis in ("latency", "tokens")}
    flat = {f"{axis}.{name}": each for axis, found in costs.items() for name, each in (found or {}).items()}
    means, drawn = resample(
        {name: np.asarray(each, np.float64) for name, each in (columns | flat).items()}, ledger.units
    )

    def ratio(above: str, below: str) -> dict[str, float] | None:
        if means[below] <= 0.0:
            return None
        return _interval(means[above] / means[below], drawn[above] / np.maximum(drawn[below], 1e-12))

    def gap(below: str) -> dict[str, float]:
        return _interval(means["early"] - means[below], drawn["early"] - drawn[below])

    return {
        "schedules": SCHEDULES,
        "whole_probes": {"tau0": whole.tau0, "tau1": whole.tau1},
        "share_unasked": _interval(means["unasked"], drawn["unasked"]),
        "share_cut": _interval(means["cut"], drawn["cut"]),
        "recall_unasked": ratio("caught_unasked", "retrieving"),
        "recall_exits": ratio("caught_cut", "reached") if thresholds.early.exits else None,
        "lost_of_skipped": ratio("lost", "skipping"),
        "accuracy": {
            "early": _interval(means["early"], drawn["early"]),
            "whole_probes": _interval(means["whole"], drawn["whole"]),
            "minus_whole_probes": gap("whole"),
            "minus_k1": gap("k1"),
            "minus_k5": gap("k5"),
        },
        "cost": {
            axis: {
                "probe_spent": ratio(f"{axis}.probe", f"{axis}.whole_probe"),
                **{
                    schedule: {
                        "mean": means[f"{axis}.{schedule}"],
                        **{
                            f"over_{name}": ratio(f"{axis}.{schedule}", f"{axis}.{name}")
                            for name in ("k1", "k5", f"whole_probes_{schedule}")
                        },
                    }
                    for schedule in (SCHEDULES if axis == "latency" else ("serial",))
                },
            }
            for axis, found in costs.items()
            if found is not None
        },
    }


def _costs(
    ledger: Ledger[Test], thresholds: Thresholds, whole: Thresholds, objective: Objective, tariff: Tariff
) -> dict[str, Floats] | None:
    """Each question's cost under both policies and the fixed actions; None where the table cannot tell."""
    outcomes = ledger.split.outcomes
    try:
        gate = gate_costs(outcomes, objective, tariff)
    except DataError:
        return None
    axis = replace(ledger, costs=gate, advances=advances(outcomes, objective, tariff, ledger.foretold.prefixes))
    found: dict[str, Floats] = {
        "probe": axis.probing(thresholds),
        "whole_probe": gate[0],
        "k1": gate[1] - gate[0],
        "k5": gate[5] - gate[0],
        "serial": axis.spent(thresholds),
        "whole_probes_serial": axis.spent(whole),
    }
    if objective == "latency":
        # Beside a probe the embedding takes no time of its own; a question that is not probed waits for it.
        assert thresholds.early is not None
        embeds = (axis.route(thresholds) > 0) | (thresholds.early.unasked > 0.0)
        hidden = axis.advances.embedding * (embeds & ~axis.unasked(thresholds.early))
        beside = axis.advances.embedding * (axis.route(whole) > 0)
        found["overlap"] = found["serial"] - hidden
        found["whole_probes_overlap"] = found["whole_probes_serial"] - beside
    return found


def _interval(value: float, drawn: Floats) -> dict[str, float]:
    low, high = np.percentile(drawn, [2.5, 97.5])
    return {"value": float(value), "low": float(low), "high": float(high)}


def in_words(found: Mapping[str, Any]) -> str:
    """One sentence for a person."""
    spent = next((axis["probe_spent"] for axis in found["cost"].values()), None)
    parts = [f"{found['share_unasked']['value']:.0%} of the questions are not probed"]
    if found["recall_exits"]:
        parts.append(f"{found['share_cut']['value']:.0%} have their probe cut short")
    if spent:
        parts.append(f"{spent['value']:.0%} of what whole probes cost is spent")
    latency = found["cost"].get("latency")
    if latency:
        over = latency["serial"]
        parts.append(
            f"time is {over['over_k1']['value']:.2f} of always-k1, {over['over_k5']['value']:.2f} of always-k5"
        )
    return "on test, " + ", ".join(parts)
