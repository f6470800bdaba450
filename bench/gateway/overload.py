"""Ten times the load that the gateway can serve, for a minute: `python bench/gateway/overload.py`.

The simulated reader has a few slots and is slow, so it is the bottleneck, as a real one is. The gateway must serve as
much as at its peak, refuse the rest at once, use no more memory, and recover right afterwards.
"""

import argparse
import asyncio
import gc
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvloop
from rich.progress import Progress

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from app.cli.console import progress  # noqa: E402
from bench.gateway import systems  # noqa: E402
from bench.gateway.figures import bars_table, overload_bars, percentile, recovered_after, written  # noqa: E402
from bench.gateway.load import Target, closed_loop  # noqa: E402
from bench.gateway.open_loop import open_loop  # noqa: E402
from bench.gateway.plot import draw_overload  # noqa: E402
from bench.gateway.processes import cpu_s, resident_mb  # noqa: E402
from bench.gateway.simulator import Slots, simulator  # noqa: E402

TIMES, WARM_UP_S = 10, 1.0
# Long enough to measure a rate, short compared with the two seconds in which it must recover.
RECOVERY_WINDOW_S = 0.5


async def overload(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure the peak, the overload, and the peak again."""
    core, mine = systems.cores()
    os.sched_setaffinity(0, {mine})
    with tempfile.TemporaryDirectory() as folder:
        async with (
            simulator(Slots(arguments.slots, arguments.service_ms / 1000.0)) as upstream,
            systems.fetchwise(upstream, Path(folder), core, max_in_flight=str(arguments.slots)) as gateway,
        ):
            target = gateway.targets[arguments.path]
            gc.freeze()
            with progress() as bar:
                return await _measured(target, gateway.pid, arguments, bar)


async def _measured(target: Target, pid: int, arguments: argparse.Namespace, bar: Progress) -> dict[str, Any]:
    seconds: int = arguments.seconds
    task = bar.add_task("peak", total=seconds)
    tried = {
        connections: await closed_loop(
            target, connections=connections, seconds=arguments.peak_seconds, warm_up_s=WARM_UP_S
        )
        for connections in (arguments.slots, arguments.slots * 3 // 2)
    }
    best = max(tried, key=lambda connections: tried[connections].rps)
    before, peak = tried[best], tried[best].rps
    bar.update(task, description=f"{TIMES} times the peak")
    rss: list[float] = []
    spent = cpu_s(pid)
    watching = asyncio.create_task(_watch(pid, seconds, rss, bar, task))
    flood = await open_loop(target, rate=TIMES * peak, seconds=seconds)
    spent = cpu_s(pid) - spent
    await watching
    bar.update(task, description="recovery")
    after = await closed_loop(target, connections=best, seconds=arguments.peak_seconds)
    counts = {outcome: flood.by_second(outcome, seconds) for outcome in flood.at}
    shed = flood.latencies["shed"]
    return {
        "peak_rps": round(peak, 1),
        "peak_connections": best,
        "offered_rps": round(flood.sent / seconds, 1),
        "seconds": seconds,
        "served_rps": round(sum(counts["served"]) / seconds, 1),
        "shed_rps": round(sum(counts["shed"]) / seconds, 1),
        "errors": len(flood.at["failed"]) + before.errors + after.errors,
        "complaint": flood.complaint or before.complaint or after.complaint,
        "served_p50_ms": _ms(flood.latencies["served"], 0.5),
        "served_p99_ms": _ms(flood.latencies["served"], 0.99),
        "shed_p50_ms": _ms(shed, 0.5),
        "shed_p99_ms": _ms(shed, 0.99),
        "cpu_share": round(spent / seconds, 2),
        "recovered_after_s": recovered_after(
            [at - after.began for at in after.at], rate=0.9 * peak, window=RECOVERY_WINDOW_S
        ),
        "by_second": [
            {"served": served, "shed": refused, "failed": failed, "rss_mb": round(mb, 1)}
            for served, refused, failed, mb in zip(*counts.values(), rss, strict=True)
        ],
    }


async def _watch(pid: int, seconds: int, rss: list[float], bar: Progress, task: Any) -> None:  # noqa: ANN401
    for _ in range(seconds):
        await asyncio.sleep(1.0)
        rss.append(resident_mb(pid))
        bar.advance(task)


def _ms(seconds: Sequence[float], share: float) -> float | None:
    return round(percentile(seconds, share) * 1000.0, 2) if seconds else None


def main() -> None:
    """Measure, print, plot, and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slots", type=int, default=16, help="number of answers that the reader generates at once")
    parser.add_argument("--service-ms", type=float, default=50.0, help="time of the reader for one answer")
    parser.add_argument("--seconds", type=int, default=60, help="of overload")
    parser.add_argument("--peak-seconds", type=float, default=10.0, help="seconds per measurement")
    parser.add_argument("--path", choices=("k0", "k1", "k5"), default="k0")
    parser.add_argument("--out", type=Path, default=ROOT / "build/bench")
    arguments = parser.parse_args()
    result = uvloop.run(overload(arguments))
    found = overload_bars(result)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "overload.json").write_text(json.dumps(written(result, found), indent=1) + "\n")
    draw_overload(result, arguments.out / "overload.png")
    for name, value in result.items():
        if name != "by_second" and value not in {None, ""}:
            print(f"{name:18} {value}")
    print()
    print(bars_table(found))


if __name__ == "__main__":
    main()
