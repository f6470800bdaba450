"""Corrections by hand, on top of what the label rule said."""

from dataclasses import replace
from pathlib import Path

import orjson

from app.errors import DataError
from app.refit.table import Outcomes


def apply_corrections(outcomes: Outcomes, path: Path) -> Outcomes:
    """Overrule labels by hand: one JSON line `{id, k, correct}` each; a later line overrules an earlier one."""
    rows = {identifier: row for row, identifier in enumerate(outcomes.ids)}
    correct = {k: labels.copy() for k, labels in outcomes.correct.items()}
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            entry = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise DataError(f"{where}: not a whole JSON object ({error}): mend or delete the line") from error
        if not isinstance(entry, dict) or not {"id", "k", "correct"} <= entry.keys():
            raise DataError(f'{where}: a correction is {{"id": ..., "k": 0, "correct": true}}: name all three')
        row, k, label = rows.get(entry["id"]), entry["k"], entry["correct"]
        if row is None:
            raise DataError(f"{where}: no row of the table has the id {entry['id']!r}: mend the id or delete the line")
        if k not in correct:
            known = ", ".join(map(str, outcomes.ks))
            raise DataError(f"{where}: k = {k!r} was not collected: choose among {known}")
        if label not in (True, False):
            raise DataError(f"{where}: correct is {label!r}: write true or false")
        correct[k][row] = bool(label)
    return replace(outcomes, correct=correct)


def _lines(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().splitlines()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}): name the file of corrections") from error
