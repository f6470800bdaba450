"""The part of the report page about deciding before a probe is whole: what an artifact's own test split said of it."""

from collections.abc import Mapping
from html import escape
from typing import Any

from app.decision.artifact import Artifact
from app.refit.eval_pages import Cell, table, with_interval

_SHARES = {
    "share_unasked": "questions that are not probed",
    "recall_unasked": "of those that whole probes would send to the passages",
    "share_cut": "questions whose probe is cut short",
    "recall_exits": "of those probed that whole probes would send to the passages",
    "lost_of_skipped": "of those that whole probes would answer closed-book, now reading passages",
}
_ACCURACY = {
    "early": "accuracy",
    "whole_probes": "accuracy of the gate that probes every question",
    "minus_k1": "accuracy minus always-k1",
    "minus_k5": "accuracy minus always-k5",
}


def early_section(artifact: Artifact | None) -> list[str]:
    """Nothing where the artifact's graded policy decides by whole probes alone."""
    found = artifact.report.get("test", {}).get("early") if artifact else None
    if not found:
        return []
    rows: list[list[Cell]] = [
        [words, with_interval(found[name])] for name, words in _SHARES.items() if found[name] is not None
    ]
    rows += [[words, with_interval(found["accuracy"][name])] for name, words in _ACCURACY.items()]
    for axis, costs in found["cost"].items():
        rows += _costs(axis, costs)
    schedules = " ".join(f"{escape(name)}: {escape(words)}." for name, words in found["schedules"].items())
    figures = table(["on the test split of its refit", ""], rows)
    return [f"<section><h2>Before the probe</h2>{figures}<p>{schedules}</p></section>"]


def _costs(axis: str, costs: Mapping[str, Any]) -> list[list[Cell]]:
    rows: list[list[Cell]] = []
    if costs["probe_spent"]:
        rows.append([f"{axis} spent on probes, of whole probes for all", with_interval(costs["probe_spent"])])
    for schedule in ("serial", "overlap"):
        for name, against in (costs.get(schedule) or {}).items():
            if name != "mean" and against is not None:
                words = name.removeprefix("over_").replace("_", " ").removesuffix(f" {schedule}")
                rows.append([f"{axis}, {schedule}, over {words}", with_interval(against)])
    return rows
