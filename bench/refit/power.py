"""How many labels a saving takes, before and after: `python bench/refit/power.py [--out power.svg]`.

1. Power of three tests of the same claim, on paired differences with a known mean and share of differing answers.
2. The share of simulated worlds in which a refit certifies a saving, by the number of labels. Before: splits of
   40/40/20, every fixed k as the reference, bets of a fixed plan. After: splits of 25/65/10, a path that starts at the
   reference, the exact test. A world has its own accuracies, signal and shared luck; the policy is the gate by
   log-probabilities, which is fitted in milliseconds.
"""

import argparse
import math
import sys
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[2]))

from app.certify import bets, exact
from app.certify.paired import Differences
from app.core.artifact import FIXED
from app.core.cost import Objective
from app.offline.refit.certify import Population
from app.offline.refit.choose import Guarantee, build_path
from app.offline.refit.fit import fit, folds, out_of_fold, predict_many
from app.offline.refit.splits import Ledger, Train, Validation, gate_costs, per_passage, position, split, units
from app.offline.table import Outcomes
from tests.offline.world import World

EPSILON = 0.02
SIZES = (250, 500, 1000, 2000)
WORLDS, TABLES = 40, 3
Floats = NDArray[np.float64]


def planned_bets(values: Floats, mean: float, delta: float) -> bool:
    """The test before: each bet is planned for all values, whatever the capital is."""
    y, tested = (values + 1.0) / 2.0, (mean + 1.0) / 2.0
    scale, capital = 2.0 * math.log(1.0 / delta) / max(len(y), 1), 1.0
    total, squares, spread = 0.5, 0.25, 0.25
    for seen, value in enumerate(y.tolist(), 2):
        capital *= bets.growth(value, math.sqrt(scale / spread), tested, 0.75 / tested)
        if capital >= 1.0 / delta:
            return True
        total += value
        squares += (value - total / seen) ** 2
        spread = squares / seen
    return False


def power_of_tests(draws: int = 200) -> None:
    """Print the share of draws that each test rejects, at the sizes where the exact test should have power .8."""
    rng, delta = np.random.default_rng(0), 0.1
    print("| validation groups | difference | differing | planned bets | bets | exact |\n|---|---|---|---|---|---|")
    for n, mean, differing in ((155, 0.02, 0.05), (581, 0.02, 0.2), (1148, 0.0, 0.1)):
        chances = [(differing - mean) / 2, 1.0 - differing, (differing + mean) / 2]
        table = rng.choice([-1.0, 0.0, 1.0], size=(draws, n), p=chances)
        found = (
            np.mean([planned_bets(d, -EPSILON, delta) for d in table]),
            np.mean([bets.above(d.tolist(), -EPSILON, low=-1.0, high=1.0, delta=delta) for d in table]),
            np.mean([exact.above(int((d > 0).sum()), int((d < 0).sum()), n, -EPSILON, delta=delta) for d in table]),
        )
        print(f"| {n} | {mean:+g} | {differing:g} | " + " | ".join(f"{share:.2f}" for share in found) + " |")


def a_world(rng: np.random.Generator) -> World:
    """Reading helps, more or less, and the signal tells something, more or less."""
    closed = rng.uniform(-1.0, 1.0)
    few = closed + rng.uniform(0.0, 1.0)
    many = few + rng.uniform(0.0, 0.5)
    slope = rng.uniform(0.8, 2.5)
    return World(level=(closed, few, many), slope=(slope, 0.5 * slope, 0.4 * slope), shared=rng.uniform(0.4, 0.9))


def ledger(part: Outcomes, p: Floats, kind: type) -> Ledger:
    """A split whose cost is the number of passages."""
    return Ledger(kind(part), p, units(part, salt="order"), gate_costs(part, Objective.MONEY, per_passage(part.ks)))


def saves(table: Outcomes, guarantee: Guarantee, *, before: bool) -> bool:
    """Whether a refit on the table certifies anything cheaper than a fixed k."""
    if before:
        place = np.array([position(group) for group in table.groups])
        train, validation = (table.take(np.flatnonzero(rows)) for rows in (place < 0.4, (place >= 0.4) & (place < 0.8)))
    else:
        train, validation = (part.outcomes for part in split(table)[:2])
    names, signals, labels = ("seq_logprob",), train.signals[0], train.correct[0]
    fitted = out_of_fold("logistic", names, signals, labels, folds(labels, train.groups))
    served = predict_many(fit("logistic", names, signals, labels), validation.signals[0], len(validation))
    path = build_path(ledger(train, fitted, Train), guarantee, graded=True)
    tested = ledger(validation, served, Validation)
    population = Population.of(validation, "")
    # The first step that is no fixed k decides: whatever comes before it must hold, too.
    for step in path:
        right = tested.right(tested.route(step.thresholds))
        others = [k for k in guarantee.references if not tested.is_reference(step.thresholds, k)]
        differences = [population.differences(right, k) for k in others]
        test = planned_bets if before else Differences.above
        values = [one.values if before else one for one in differences]
        if not all(test(one, -guarantee.epsilon, guarantee.level) for one in values):
            return False
        if step.thresholds not in FIXED:
            return True
    return False


def curves(worlds: int, tables: int) -> dict[str, list[float]]:
    """The share of worlds that save, by size: before, after, and after at the first refit of a shared delta of .1."""
    # A guarantee spends half of its delta at the first refit.
    before = Guarantee((0, 1, 5), EPSILON, 0.2)
    rules = {
        "before, delta .1 spent": (before, True),
        "after, delta .1 spent": (replace(before, references=(5,)), False),
        "after, .05 of .1 spent": (Guarantee((5,), EPSILON, 0.1), False),
    }
    rng = np.random.default_rng(0)
    drawn = [a_world(rng) for _ in range(worlds)]
    found: dict[str, list[float]] = {name: [] for name in rules}
    for size in SIZES:
        for name, (guarantee, old) in rules.items():
            saved = [
                saves(world.draw(size, seed=100 * number + table)[0], guarantee, before=old)
                for number, world in enumerate(drawn)
                for table in range(tables)
            ]
            found[name].append(float(np.mean(saved)))
    return found


def main() -> None:
    """Print both tables, and draw the curves."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="write the curves as an SVG figure")
    parser.add_argument("--worlds", type=int, default=WORLDS)
    parser.add_argument("--tables", type=int, default=TABLES)
    given = parser.parse_args()
    power_of_tests()
    found = curves(given.worlds, given.tables)
    print("\n| labelled groups | " + " | ".join(found) + " |\n|---" + "|---" * len(found) + "|")
    for place, size in enumerate(SIZES):
        print(f"| {size} | " + " | ".join(f"{shares[place]:.2f}" for shares in found.values()) + " |")
    if given.out:
        mpl.use("Agg")
        from matplotlib import pyplot as plt  # noqa: PLC0415

        for name, shares in found.items():
            plt.plot(SIZES, shares, marker="o", label=name)
        plt.xscale("log")
        plt.xticks(SIZES, [f"{size:,}" for size in SIZES])
        plt.xlabel("labelled groups")
        plt.ylabel("share of worlds that save")
        plt.ylim(0.0, 1.0)
        plt.legend()
        plt.savefig(given.out, metadata={"Date": None})


if __name__ == "__main__":
    main()
