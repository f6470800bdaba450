"""Every schedule against always-RAG on a simulated reader that batches: `python bench/schedules/run.py`.

Writes `schedules.json`, a row a schedule, regime and load; `schedules-bars.json`, what must be seen and whether it was;
and pictures of both.
"""

import argparse
import sys
from itertools import chain
from pathlib import Path

import orjson
from rich.console import Console
from rich.progress import track

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from bench.schedules.plots import draw_loads, draw_sweep  # noqa: E402
from bench.schedules.readers import SMALL, Reader  # noqa: E402
from bench.schedules.regimes import QUICK, Row, Scale, assumptions, catching, paper, sweep, tables  # noqa: E402
from bench.schedules.tables import Replay, reader_of, replay  # noqa: E402
from bench.schedules.verdicts import Bar, as_json, bar_table, bars, table, variants  # noqa: E402

DEMO = ROOT / "demo" / "outcomes.jsonl.gz"
LLAMA = ROOT.parent / "shared" / "data" / "llama8b-outcomes"
# The demo world's table does not tell retrieval apart: about what the embedded embedder and search take.
DEMO_RETRIEVAL_MS = 25.0


def replays(llama: Path) -> list[tuple[Replay, Reader]]:
    """The demo world's table with its own reader, and published Llama tables, where they are, with the paper's 8B."""
    demo = replay("demo", DEMO)
    found = [(demo, reader_of("demo", demo.outcomes, DEMO_RETRIEVAL_MS))]
    published = sorted(llama.glob("*.jsonl"))
    if not published:
        print(f"no tables in {llama}: replaying the demo world's alone", file=sys.stderr)
    return [*found, *((replay(f"llama {path.stem}", path), SMALL) for path in published)]


def measure(scale: Scale, llama: Path) -> tuple[list[Row], list[Bar]]:
    """Run everything, with a bar that says how far it is."""
    found = replays(llama)
    exits = found[0][0].found
    assert exits is not None
    tasks = [
        *chain(paper(scale), catching(scale, exits), assumptions(scale), tables(scale, found), sweep(scale)),
    ]
    rows: list[Row] = []
    for task in track(tasks, "simulating", console=Console(stderr=True)):
        rows += task()
    return rows, bars(rows, exits, sum(k > 0 for k in found[0][0].k))


def main() -> None:
    """Measure, write and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few questions and regimes: to see that it runs")
    parser.add_argument("--llama", type=Path, default=LLAMA, help="a folder of published outcome tables")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench")
    arguments = parser.parse_args()
    rows, found = measure(QUICK if arguments.quick else Scale(), arguments.llama)
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    for name, data in (("schedules", rows), ("schedules-bars", as_json(found))):
        (out / f"{name}.json").write_bytes(orjson.dumps(data, option=orjson.OPT_INDENT_2))
    draw_loads(rows, out / "schedules-load.png")
    draw_sweep(rows, out / "schedules-sweep.png")
    plain = [row for row in rows if not row["regime"].startswith(("sweep", "paper, "))]
    for model, regime in dict.fromkeys((row["model"], row["regime"]) for row in plain):
        print(f"\n{regime}, {model}: mean latency over always-RAG; the rest idle, p99 at the highest load")
        print(f"\n{table(rows, regime, model)}")
    print(f"\npaper, other exits and other assumptions: mean latency over always-RAG\n\n{variants(rows)}")
    print(f"\n{bar_table(found)}")
    if any(bar.met is False for bar in found):
        sys.exit(1)


if __name__ == "__main__":
    main()
