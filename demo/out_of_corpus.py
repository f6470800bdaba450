"""Collect the questions that the corpus cannot answer, so that the gateway can be tried on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from demo import outside_names, outside_topics, outside_unseen


def out_of_corpus() -> list[dict[str, Any]]:
    """Write the questions that a fit may read."""
    return _rows("ooc", outside_topics.KINDS | outside_names.KINDS)


def out_of_corpus_unseen() -> list[dict[str, Any]]:
    """Write the questions that no fit reads."""
    return _rows("ooc-unseen", outside_unseen.KINDS)


def _rows(prefix: str, kinds: Mapping[str, str]) -> list[dict[str, Any]]:
    """Make one row of each line; every question is a group of its own."""
    found: list[dict[str, Any]] = []
    for kind, lines in kinds.items():
        for number, line in enumerate(lines.strip().splitlines(), 1):
            name = f"{kind}-{number:03d}"
            found.append(
                {
                    "id": f"{prefix}-{name}",
                    "group": f"{prefix}:{name}",
                    "question": line.replace("⏎", "\n"),
                    "gold": [],
                    "tags": {"kind": kind},
                    "out_of_corpus": True,
                }
            )
    return found
