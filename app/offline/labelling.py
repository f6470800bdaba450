"""Labels by hand: which answers need one, and how they are joined to a table.

Answers that are equal after normalisation share a label. In the validation split a question whose answers are all equal
needs none: whatever a policy chooses, it is as right as the reference. Train and test need every label: heads and
confidences are fitted and judged on all questions.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from app.certify.plan import TEST_FROM, train_share
from app.core.labels import normalise
from app.errors import DataError
from app.offline.builder import load
from app.offline.lines import read_lines
from app.offline.refit.splits import position
from app.offline.table import Outcomes


def write_unlabelled(table: Path, out: Path) -> tuple[int, int]:
    """Write one line for each answer that needs a label; how many there are, and how many answers need none.

    Lines of an earlier file that have a label stay.
    """
    outcomes, done = load(table), []
    if out.exists():
        outcomes = apply_labels(outcomes, out)
        done = [entry for _, entry in read_lines(out) if entry["correct"] is not None]
    needed = list(unlabelled_answers(outcomes))
    out.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in (*done, *needed)))
    missing = sum(int(column.sum()) for column in outcomes.unlabelled.values())
    return len(needed), missing - sum(len(line["ks"]) for line in needed)


def unlabelled_answers(outcomes: Outcomes) -> Iterator[dict[str, Any]]:
    """One line for each distinct answer without a label; a person sets `correct` to true or false."""
    share = train_share(len(set(outcomes.groups)))
    for row in np.flatnonzero(outcomes.lacking).tolist():
        if share <= position(outcomes.groups[row]) < TEST_FROM and outcomes.alike[row]:
            continue
        distinct: dict[str, list[int]] = {}
        for k, column in outcomes.unlabelled.items():
            if column[row]:
                distinct.setdefault(normalise(outcomes.answers[k][row]), []).append(k)
        for ks in distinct.values():
            asked = {"id": outcomes.ids[row], "question": outcomes.questions[row]}
            yield asked | {"answer": outcomes.answers[ks[0]][row], "ks": ks, "correct": None}


def apply_labels(outcomes: Outcomes, path: Path) -> Outcomes:
    """Set labels by hand: one JSON line `{id, ks, correct}` each; a later line overrides an earlier one.

    A line whose label is null is left out: nobody has judged it yet.
    """
    rows = {identifier: row for row, identifier in enumerate(outcomes.ids)}
    correct = {k: labels.copy() for k, labels in outcomes.correct.items()}
    unlabelled = {k: column.copy() for k, column in outcomes.unlabelled.items()}
    for place, entry in read_lines(path):
        ks = entry.get("ks")
        if not {"id", "correct"} <= entry.keys() or not isinstance(ks, list) or {type(k) for k in ks} - {int}:
            raise DataError(f'{place}: a label is {{"id": ..., "ks": [0], "correct": true}}: write all three')
        row, label = rows.get(str(entry["id"])), entry["correct"]
        if row is None:
            raise DataError(f"{place}: no row of the table has the id {entry['id']!r}: fix the id or delete the line")
        if label not in (True, False, None):
            raise DataError(f"{place}: correct is {label!r}: write true or false")
        for k in ks:
            if k not in correct:
                raise DataError(f"{place}: k = {k!r} was not collected: choose among {', '.join(map(str, correct))}")
            if label is not None:
                correct[k][row] = bool(label)
                if unlabelled:
                    unlabelled[k][row] = False
    return replace(outcomes, correct=correct, unlabelled=unlabelled)
