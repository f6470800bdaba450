"""The gateway, two pass-throughs and a LiteLLM proxy side by side, one core each: `python bench/gateway/run.py`.

Rounds are interleaved, so other load on the machine affects all systems equally. Only figures of the same run are
comparable: the ratios at the end are the result.
"""

import argparse
import functools
import gc
import json
import os
import statistics
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

import uvloop

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from app.cli.console import progress  # noqa: E402
from bench.gateway import systems  # noqa: E402
from bench.gateway.figures import BEFORE, Figures, Round, bars, bars_json, bars_table, figures, percentile, table  # noqa: E402
from bench.gateway.load import Target, closed_loop  # noqa: E402
from bench.gateway.plot import draw_results  # noqa: E402
from bench.gateway.processes import cpu_s  # noqa: E402
from bench.gateway.replies import PATHS  # noqa: E402
from bench.gateway.simulator import simulator  # noqa: E402
from bench.gateway.systems import System  # noqa: E402

WARM_UP_S, FIRST_WARM_UP_S = 0.5, 2.0


async def measure(system: System, path: str, *, connections: int, seconds: float) -> Round:
    """One round of one cell: a warm-up, load, then a third of the time at concurrency 1."""
    target = system.targets[path]
    warm_up = await closed_loop(target, connections=connections, seconds=WARM_UP_S)
    loaded = await closed_loop(target, connections=connections, seconds=seconds, meter=lambda: cpu_s(system.pid))
    alone = await closed_loop(target, connections=1, seconds=seconds / 3.0, warm_up_s=0.1)
    for sample in (warm_up, loaded, alone):
        if sample.complaint:
            print(f"{system.name} on {path}: {sample.complaint}", file=sys.stderr)
    each_ms = loaded.metered * 1000.0 / max(len(loaded.latencies), 1)
    errors = warm_up.errors + loaded.errors + alone.errors
    return Round(loaded.rps, loaded.latencies, alone.latencies, errors, each_ms)


def chosen(arguments: argparse.Namespace) -> dict[str, systems.Opener]:
    """The systems to measure, by name; those that are not installed are skipped."""
    openers = {name: systems.OPENERS[name] for name in arguments.systems}
    if "litellm" in openers and not systems.LITELLM.exists():
        print(f"litellm is skipped: there is no {systems.LITELLM}", file=sys.stderr)
        del openers["litellm"]
    if arguments.before is not None:
        openers[BEFORE] = functools.partial(systems.fetchwise, name=BEFORE, checkout=arguments.before.resolve())
    return openers


async def direct_p50_ms(target: Target, seconds: float) -> float:
    """The reader's own median at concurrency 1."""
    sample = await closed_loop(target, connections=1, seconds=seconds, warm_up_s=0.1)
    return percentile(sample.latencies, 0.5) * 1000.0


async def run(arguments: argparse.Namespace) -> tuple[dict[str, dict[str, Figures]], float]:
    """Run all rounds of all cells; returns the measurements and the reader's own median."""
    core, mine = systems.cores()
    os.sched_setaffinity(0, {mine})
    with tempfile.TemporaryDirectory() as folder:
        async with simulator() as upstream, AsyncExitStack() as stack:
            opened = []
            for name, opener in chosen(arguments).items():
                (own := Path(folder) / name).mkdir()
                opened.append(await stack.enter_async_context(opener(upstream, own, core)))
            cells = [(system, path) for system in opened for path in arguments.paths if path in system.targets]
            rounds: dict[tuple[str, str], list[Round]] = {(system.name, path): [] for system, path in cells}
            direct = []
            for system, path in cells:
                # Some systems load much of their code with the first requests.
                await closed_loop(system.targets[path], connections=arguments.connections, seconds=FIRST_WARM_UP_S)
            gc.freeze()
            with progress() as bar:
                task = bar.add_task("measuring", total=arguments.rounds * len(cells))
                for _ in range(arguments.rounds):
                    direct.append(await direct_p50_ms(systems.direct(upstream), arguments.seconds / 3.0))
                    for system, path in cells:
                        bar.update(task, description=f"{system.name} {path}")
                        one = await measure(system, path, connections=arguments.connections, seconds=arguments.seconds)
                        rounds[system.name, path].append(one)
                        bar.advance(task)
    results: dict[str, dict[str, Figures]] = {}
    for (name, path), measured in rounds.items():
        results.setdefault(name, {})[path] = figures(measured)
    return results, statistics.median(direct)


def main() -> None:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--systems", nargs="+", choices=systems.OPENERS, default=list(systems.OPENERS))
    parser.add_argument("--paths", nargs="+", choices=PATHS, default=list(PATHS))
    parser.add_argument("--before", type=Path, help="another checkout; its gateway is measured as `before`")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="under load, a round")
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--out", type=Path, default=ROOT / "build/bench")
    arguments = parser.parse_args()
    results, direct = uvloop.run(run(arguments))
    found = bars(results, direct)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "gateway.json").write_text(json.dumps(results, indent=1) + "\n")
    (arguments.out / "gateway-ratios.json").write_text(json.dumps(bars_json(found, direct), indent=1) + "\n")
    draw_results(results, arguments.out / "gateway.png")
    print(table(results))
    print(f"\nThe reader alone answers in {direct:.3f} ms (median at concurrency 1).\n")
    print(bars_table(found))


if __name__ == "__main__":
    main()
