"""Trace four walks through the code, here and in another checkout: `python bench/walks/run.py --before ../other`.

Each walk runs in its own process, on the fakes of its own checkout. See `traced.py` for what is counted.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from bench.walks.traced import WALKS  # noqa: E402

Figures = dict[str, Any]
# Planned number of modules on each walk.
PLANNED = {"question": "26", "refit": "16", "ingest": "8", "dashboard": "12", "dashboard, requests alone": ""}


def trace(checkout: Path, walk: str) -> Figures:
    """The modules and calls of one walk in a checkout."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "figures.json"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FETCHWISE_")}
        done = subprocess.run(
            [sys.executable, str(Path(__file__).with_name("traced.py")), walk, str(out)],
            cwd=checkout,
            env=kept | {"PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            sys.exit(f"the walk {walk!r} failed in {checkout}:\n{done.stdout}{done.stderr}")
        figures: Figures = json.loads(out.read_text())
        return figures


def table(measured: dict[str, dict[str, Figures]]) -> str:
    """One row per walk: modules planned, then modules, calls and transitions of each checkout."""
    heads = [f"{figure}, {name}" for figure in ("modules", "calls", "transitions") for name in measured]
    lines = ["| walk | modules, planned | " + " | ".join(heads) + " |", "|---" * (len(heads) + 2) + "|"]
    for walk, planned in PLANNED.items():
        by_name = [walks[walk] for walks in measured.values()]
        cells = [len(one["modules"]) for one in by_name]
        cells += [one[figure] for figure in ("calls", "transitions") for one in by_name]
        lines.append(f"| {walk} | {planned} | " + " | ".join(f"{cell:,}" for cell in cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Trace and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, help="another checkout, traced as `before`")
    parser.add_argument("--modules", action="store_true", help="list the modules of each walk with their calls")
    arguments = parser.parse_args()
    checkouts = {"before": arguments.before} if arguments.before else {}
    checkouts |= {"after" if checkouts else "now": ROOT}
    measured = {name: {walk: trace(path.resolve(), walk) for walk in WALKS} for name, path in checkouts.items()}
    print(table(measured))
    if arguments.modules:
        for name, walks in measured.items():
            for walk, figures in walks.items():
                print(f"\n{walk}, {name}:")
                print("\n".join(f"  {module} {calls:,}" for module, calls in figures["modules"].items()))


if __name__ == "__main__":
    main()
