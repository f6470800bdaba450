"""How often the promises are broken, in worlds whose truth is known: `make bench-guarantee`.

Prints a table and writes build/bench/guarantee.json. Fails if a promise is broken significantly more often than delta
in a world that it covers (binomial test at 1 %).
"""

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from bench.guarantee.worlds import DELTA, WORLDS, Found, simulate  # noqa: E402
from tests.offline import test_guarantee  # noqa: E402

OUT = ROOT / "build" / "bench" / "guarantee.json"
# Many validation splits for each fit: given the fit they are independent.
DRAWS = 50
SIGNIFICANT = 0.01


def whole_refit(name: str, runs: int) -> Found:
    """A world in which everything is fitted, trees included."""
    counts = test_guarantee.simulate(*test_guarantee.LADDERS[name], plans=runs // DRAWS, draws=DRAWS)
    return Found(counts.draws, counts.broken, DELTA, covered=True)


def main() -> int:
    """Simulate every world."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000)
    runs = parser.parse_args().runs
    worlds = {name: lambda name=name: simulate(name, runs) for name in WORLDS}
    worlds |= {"whole refits: lost epsilon": lambda: whole_refit("lost epsilon", runs)}
    found: dict[str, Found] = {}
    for name, run in worlds.items():
        began = time.perf_counter()
        one = found[name] = run()
        said = f"p = {one.p:.2f}" if one.covered else "not covered"
        print(f"{name:56} {one.share:6.1%} of {one.runs} ({said}, {time.perf_counter() - began:.0f} s)", flush=True)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    report = {name: asdict(one) | {"share": one.share, "p": one.p} for name, one in found.items()}
    OUT.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return int(any(one.covered and one.p < SIGNIFICANT for one in found.values()))


if __name__ == "__main__":
    sys.exit(main())
