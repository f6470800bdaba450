"""Rows of traffic as each schedule would leave them, at costs that are known."""

import numpy as np

from app.decision.cost import Costs
from app.decision.forecast import Schedule
from app.observers.traffic import ROW, SCHEDULES, Rows

# Of a probe, and of reading one passage and five.
PROBE_TOKENS, READ_TOKENS = (40, 6), {1: (170, 6), 5: (690, 6)}


def gated_rows(
    costs: Costs,
    counts: dict[int, int],
    schedule: Schedule = Schedule.SERIAL,
    *,
    at: float = 0.0,
    waited_ms: float = 0.0,
    most: int = 5,
) -> Rows:
    """So many gated questions at each k, answered by the schedule, each taking exactly what it costs on its own."""
    rows = np.concatenate([_at(k, n, costs, schedule, most) for k, n in counts.items()])
    rows["at"], rows["gated"], rows["schedule"] = at, True, SCHEDULES.index(schedule.value)
    rows["waited_ms"] = waited_ms
    rows["total_ms"] += waited_ms
    # In turn, so that no kind comes first.
    mixed: Rows = rows[np.random.default_rng(1).permutation(len(rows))]
    return mixed


def ungated_rows(costs: Costs, k: int, n: int, *, at: float = 0.0) -> Rows:
    """So many questions that read k passages without a probe."""
    rows = _at(k, n, costs, Schedule.SERIAL, k)
    rows["at"], rows["probe_ms"], rows["probe_prompt"], rows["probe_completion"] = at, np.nan, 0, 0
    rows["whole"] = False
    rows["total_ms"] -= costs.cb
    return rows


def _at(k: int, n: int, c: Costs, schedule: Schedule, most: int) -> Rows:
    rows = np.zeros(n, ROW)
    rows["k"], rows["action"], rows["passages"] = k, (0, 1, 5).index(k), k
    rows["probe_ms"], rows["whole"] = c.cb, True
    rows["probe_prompt"], rows["probe_completion"] = PROBE_TOKENS
    rows["embed_ms"] = rows["search_ms"] = rows["read_ms"] = np.nan
    ahead = schedule is not Schedule.SERIAL
    fetch, read = (c.ret1, c.ob1) if (most if ahead else k) == 1 else (c.ret5, c.ob5)
    if k or ahead:
        rows["calls"], rows["fetched"] = 1, most if ahead else k
        rows["embed_ms"], rows["search_ms"] = 0.25 * fetch, 0.75 * fetch
    if k:
        rows["reads"], rows["read_ms"] = 1, c.ob1 if k == 1 else c.ob5
        rows["read_prompt"], rows["read_completion"] = READ_TOKENS[k]
    raced = schedule is Schedule.RACE
    if raced and k != most:
        rows["wasted_prompt"], rows["wasted_completion"] = READ_TOKENS[most]
    if k == 0:
        rows["total_ms"] = c.cb
    elif raced and k == most:
        rows["total_ms"] = max(c.cb, fetch + read)
    else:
        rows["total_ms"] = (max(c.cb, fetch) if ahead else c.cb + fetch) + (c.ob1 if k == 1 else c.ob5)
    return rows
