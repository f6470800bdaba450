"""Time and memory of a refit, from file to artifact, by table size: `python bench/refit/run.py`.

Each size runs in its own process, so its peak memory is its own.
"""

import argparse
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

SIZES = (1_000, 10_000, 100_000)


def measure(table: Path) -> dict[str, float]:
    """Load and refit one table in this process."""
    from app.offline.builder import load  # noqa: PLC0415
    from app.offline.refit.options import Options  # noqa: PLC0415
    from app.offline.refit.refit import refit  # noqa: PLC0415

    started = time.perf_counter()
    outcomes = load(table, texts=False)
    loaded = time.perf_counter()
    marks: list[tuple[str, float]] = []
    artifact, _ = refit(
        outcomes,
        Options("bench", "2026-01-01T00:00:00Z"),
        on_step=lambda step: marks.append((step, time.perf_counter())),
    )
    done = time.perf_counter()
    ends = [at for _, at in marks[1:]] + [done]
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "rows": len(outcomes),
        "load_s": loaded - started,
        **{f"{step}_s": end - at for (step, at), end in zip(marks, ends, strict=True)},
        "total_s": done - started,
        "cpu_s": used.ru_utime + used.ru_stime,
        "peak_mb": used.ru_maxrss / 1024,
        "certified": artifact.certified,
    }


def main() -> None:
    """Measure every size, and the exponent with which CPU time grows from one size to the next."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", type=Path, help="measure this table, in this process, and print JSON")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    arguments = parser.parse_args()
    if arguments.table:
        print(json.dumps(measure(arguments.table)))
        return
    before = None
    print("| rows | load s | fit s | certify s | evaluate s | total s | CPU s | peak MB | growth exponent |")
    print("|---" * 9 + "|")
    with tempfile.TemporaryDirectory() as folder:
        for size in arguments.sizes:
            table = Path(folder) / f"{size}.jsonl"
            make = [sys.executable, str(ROOT / "bench/refit/make_table.py"), str(size), str(table)]
            subprocess.run(make, check=True)
            run = [sys.executable, __file__, "--table", str(table)]
            result = json.loads(subprocess.run(run, check=True, stdout=subprocess.PIPE, text=True).stdout)
            table.unlink()
            exponent = ""
            if before is not None:
                exponent = f"{math.log(result['cpu_s'] / before['cpu_s']) / math.log(size / before['rows']):.2f}"
            before = result
            names = ("load", "fitting on train", "certifying on validation", "evaluating on test", "total", "cpu")
            cells = " | ".join(f"{result[f'{name}_s']:.1f}" for name in names)
            print(f"| {size} | {cells} | {result['peak_mb']:.0f} | {exponent} |", flush=True)


if __name__ == "__main__":
    main()
