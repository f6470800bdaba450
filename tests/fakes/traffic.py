"""Rows of traffic with known costs."""

from dataclasses import dataclass

import numpy as np

from app.economics.window import ROW, Rows

# For a probe, and for reading one passage and five.
PROBE_TOKENS, READ_TOKENS = (40, 6), {1: (170, 6), 5: (690, 6)}


@dataclass(frozen=True, slots=True)
class Costs:
    """Milliseconds of a probe, of retrieval, and of reading one passage and five."""

    cb: float
    ret: float
    ob: dict[int, float]


def gated_rows(costs: Costs, counts: dict[int, int], *, at: float = 0.0) -> Rows:
    """This many gated questions at each k, each with exactly its cost."""
    rows = np.concatenate([_at(k, n, costs) for k, n in counts.items()])
    rows["at"], rows["gated"] = at, True
    # Alternating, so no kind comes first.
    mixed: Rows = rows[np.random.default_rng(1).permutation(len(rows))]
    return mixed


def _at(k: int, n: int, c: Costs) -> Rows:
    rows = np.zeros(n, ROW)
    rows["k"], rows["passages"] = k, k
    rows["probe_ms"], rows["total_ms"] = c.cb, c.cb
    rows["probe_prompt"], rows["probe_completion"] = PROBE_TOKENS
    rows["embed_ms"] = rows["search_ms"] = rows["read_ms"] = np.nan
    if k:
        rows["embed_ms"], rows["search_ms"], rows["read_ms"] = 0.25 * c.ret, 0.75 * c.ret, c.ob[k]
        rows["read_prompt"], rows["read_completion"] = READ_TOKENS[k]
        rows["searches"] = rows["reads"] = 1
        rows["total_ms"] += c.ret + c.ob[k]
    return rows
