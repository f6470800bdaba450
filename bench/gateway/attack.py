"""Hundreds of hostile connections beside honest questions: `python bench/gateway/attack.py`.

The gateway must answer every honest question, almost as fast as without the others, and use little more memory. The
load goes to a gateway on the loopback address that this program starts.
"""

import argparse
import asyncio
import gc
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import uvloop

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from bench.gateway import systems  # noqa: E402
from bench.gateway.attackers import attacking  # noqa: E402
from bench.gateway.figures import attack_bars, bars_table, percentile, written  # noqa: E402
from bench.gateway.load import Target  # noqa: E402
from bench.gateway.open_loop import open_loop  # noqa: E402
from bench.gateway.processes import cpu_s, resident_mb  # noqa: E402
from bench.gateway.simulator import Slots, simulator  # noqa: E402

WARM_UP_S = 3.0


async def attack(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure honest questions alone, then beside the attack."""
    core, mine = systems.cores()
    os.sched_setaffinity(0, {mine})
    with tempfile.TemporaryDirectory() as folder:
        async with (
            simulator(Slots(arguments.slots, arguments.service_ms / 1000.0)) as upstream,
            systems.fetchwise(upstream, Path(folder), core) as gateway,
        ):
            target = gateway.targets[arguments.path]
            gc.freeze()
            await open_loop(target, rate=arguments.rate, seconds=WARM_UP_S)
            quiet = await _measured(target, gateway.pid, arguments.rate, arguments.quiet_seconds)
            async with attacking(target.port, arguments.connections) as opened:
                attacked = await _measured(target, gateway.pid, arguments.rate, arguments.seconds)
    return {
        "connections": arguments.connections,
        "opened": opened,
        "load_average": round(os.getloadavg()[0], 1),
        "quiet": quiet,
        "attacked": attacked,
    }


async def _measured(target: Target, pid: int, rate: float, seconds: int) -> dict[str, Any]:
    memory: list[float] = []
    spent = cpu_s(pid)
    watching = asyncio.create_task(_watch(pid, memory))
    sent = await open_loop(target, rate=rate, seconds=seconds)
    watching.cancel()
    served = sent.latencies["served"]
    return {
        "seconds": seconds,
        "sent": sent.sent,
        "served": len(served),
        "complaint": sent.complaint,
        "p50_ms": round(percentile(served, 0.5) * 1000.0, 1) if served else None,
        "p99_ms": round(percentile(served, 0.99) * 1000.0, 1) if served else None,
        "max_ms": round(max(served) * 1000.0, 1) if served else None,
        "rss_mb": round(max(memory), 1),
        "cpu_share": round((cpu_s(pid) - spent) / seconds, 2),
    }


async def _watch(pid: int, memory: list[float]) -> None:
    while True:
        memory.append(resident_mb(pid))
        await asyncio.sleep(0.5)


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=500, help="hostile connections, at most 1000")
    parser.add_argument("--rate", type=float, default=20.0, help="honest questions per second")
    parser.add_argument("--seconds", type=int, default=120, help="of attack, at most 600")
    parser.add_argument("--quiet-seconds", type=int, default=60, help="without an attack, to compare with")
    parser.add_argument("--slots", type=int, default=16, help="number of answers that the reader generates at once")
    parser.add_argument("--service-ms", type=float, default=50.0, help="time of the reader for one answer")
    parser.add_argument("--path", choices=("k0", "k1", "k5"), default="k5")
    parser.add_argument("--out", type=Path, default=ROOT / "build/bench")
    arguments = parser.parse_args()
    arguments.connections, arguments.seconds = min(arguments.connections, 1000), min(arguments.seconds, 600)
    result = uvloop.run(attack(arguments))
    found = attack_bars(result)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "attack.json").write_text(json.dumps(written(result, found), indent=1) + "\n")
    print(json.dumps(result, indent=1))
    print(bars_table(found))


if __name__ == "__main__":
    main()
