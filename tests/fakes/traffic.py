"""Rows of traffic at costs that are known."""

import numpy as np

from app.decision.cost import Costs
from app.observers.traffic import ROW, Rows

# Of a probe, and of reading one passage and five.
PROBE_TOKENS, READ_TOKENS = (40, 6), {1: (170, 6), 5: (690, 6)}


def gated_rows(costs: Costs, counts: dict[int, int], *, at: float = 0.0) -> Rows:
    """So many gated questions at each k, each taking exactly what it costs on its own."""
    rows = np.concatenate([_at(k, n, costs) for k, n in counts.items()])
    rows["at"], rows["gated"] = at, True
    # In turn, so that no kind comes first.
    mixed: Rows = rows[np.random.default_rng(1).permutation(len(rows))]
    return mixed


def _at(k: int, n: int, c: Costs) -> Rows:
    rows = np.zeros(n, ROW)
    rows["k"], rows["action"], rows["passages"] = k, (0, 1, 5).index(k), k
    rows["probe_ms"], rows["total_ms"] = c.cb, c.cb
    rows["probe_prompt"], rows["probe_completion"] = PROBE_TOKENS
    rows["embed_ms"] = rows["search_ms"] = rows["read_ms"] = np.nan
    if k:
        fetch, read = (c.ret1, c.ob1) if k == 1 else (c.ret5, c.ob5)
        rows["embed_ms"], rows["search_ms"], rows["read_ms"] = 0.25 * fetch, 0.75 * fetch, read
        rows["read_prompt"], rows["read_completion"] = READ_TOKENS[k]
        rows["total_ms"] += fetch + read
    return rows
