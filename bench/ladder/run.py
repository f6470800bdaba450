"""The ladder beside fixed numbers of passages and the gate by log-probabilities: `make bench-ladder`.

The demo's tables: groups (or whole relations) are divided 40/50/10 many times; everything is fitted and chosen on the
first part within a token budget, and measured on the rest, each group once. Published tables: five folds for each of
many seeds, out-of-fold. Figures are means over the divisions; intervals are those of one division. Results also go to
build/bench/ladder.json.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from app.offline.refit.heads import Part  # noqa: E402
from app.offline.refit.ladder import FittedHeads, Sample, fit_probabilities  # noqa: E402
from bench.ladder.figures import Figures, mean_of  # noqa: E402
from bench.ladder.policies import Rows, fixed, graded, ladder, ladder_path, sample_of, within_budget  # noqa: E402
from bench.ladder.tables import Table, demo, published, shared  # noqa: E402

OUT = ROOT / "build" / "bench" / "ladder.json"
TRAIN_SHARE = 0.4
VARIANTS: dict[str, tuple[tuple[Part, ...], bool]] = {
    "ladder": (("linear", "trees"), False),
    "ladder, one purchase ahead": (("linear", "trees"), True),
    "ladder, logistic": (("linear",), False),
    "ladder, trees": (("trees",), False),
}
# What the demo's ladder is expected to reach: figure, bound, and whether the bound is a maximum.
TARGETS = (
    ("tokens", 0.60, True),
    ("vs k1", 0.04, False),
    ("vs k5", 0.08, False),
    ("auroc_k0", 0.93, False),
    ("auroc_confidence", 0.89, False),
    ("accuracy_at_80", 0.88, False),
    ("coverage_at_5", 0.50, False),
    ("ece", 0.03, True),
    ("overconfidence", 0.005, True),
)
# Of published tables: how far below always reading the most, at half of the big reads.
PUBLISHED_TARGETS = {"nq": -0.015, "squad": -0.045}


def divisions(names: list[str], splits: int) -> Iterator[np.ndarray]:
    """Which rows train, for each division of the names (groups or relations) of all rows."""
    every = np.array(names)
    distinct, counts = np.unique(every, return_counts=True)
    for seed in range(splits):
        order = np.random.default_rng(seed).permutation(len(distinct))
        share = np.cumsum(counts[order]) / counts.sum()
        yield np.isin(every, distinct[order[share <= TRAIN_SHARE + 1e-9]])


def measure(table: Table, train: Rows, tests: dict[str, tuple[Table, Rows]], variants: list[str]) -> Iterator[Figures]:
    """Fit every policy on train, and run it on each test."""
    fits: dict[tuple[Part, ...], tuple[Sample, FittedHeads]] = {}
    for name in variants:
        parts, ahead = VARIANTS[name]
        if parts not in fits:
            sample = sample_of(table, train, parts)
            fits[parts] = sample, fit_probabilities(sample)
        sample, fitted = fits[parts]
        step = within_budget(ladder_path(sample, fitted, ahead=ahead))
        for split, (other, rows) in tests.items():
            yield Figures.of(other, split, name, rows, ladder(other, rows, sample, fitted, step))
    sample, _ = next(iter(fits.values()))
    for split, (other, rows) in tests.items():
        yield Figures.of(other, split, "graded", rows, graded(other, rows, sample))
        for k in other.ks:
            yield Figures.of(other, split, f"always-k{k}", rows, fixed(other, rows, k))


def measure_demo(splits: int, variants: list[str]) -> list[Figures]:
    """In distribution, with whole relations held out, and on facts of unseen relations where they were collected."""
    table = demo(ROOT / "demo" / "outcomes.jsonl.gz")
    unseen_path = ROOT / "demo" / "unseen_outcomes.jsonl.gz"
    unseen = demo(unseen_path) if unseen_path.exists() else None
    if unseen is None:
        print(f"{unseen_path} is not there: no figures on unseen facts")
    found: list[Figures] = []
    # Out-of-corpus questions have no relation: a group of them is divided as if it were one.
    relations = [relation or group for relation, group in zip(table.relations, table.groups, strict=True)]
    for split, names in (("test", table.groups), ("relations", relations)):
        for number, held in enumerate(divisions(names, splits)):
            # Out-of-corpus questions train, and stay out of accuracies.
            train, rest = np.flatnonzero(held), np.flatnonzero(~held & ~table.outside)
            tests = {split: (table, rest)}
            if unseen is not None and split == "test":
                tests["unseen"] = (unseen, np.flatnonzero(~unseen.outside))
            started = time.perf_counter()
            found += measure(table, train, tests, variants)
            print(f"{split} {number + 1}/{splits}: {time.perf_counter() - started:.0f} s", file=sys.stderr)
    return found


def measure_published(path: Path, seeds: int) -> list[dict[str, object]]:
    """Accuracy minus always reading the most, by the share of big reads, out-of-fold; logistic heads."""
    table = published(path)
    n, top = len(table.groups), table.ks[-1]
    always = float(table.correct[top].mean())
    common = {"table": table.name, "split": "folds", "n": n}
    rows: list[dict[str, object]] = []
    for name, curves in _published_curves(table, seeds).items():
        for share in (0.3, 0.4, 0.5, 0.6, 0.7):
            at = [[np.interp(share, curve[:, 0], curve[:, column]) for column in (1, 2, 3)] for curve in curves]
            gap, cost, deviation = np.mean(at, axis=0).tolist()
            half = 1.96 * deviation / n**0.5
            policy = f"{name}, logistic, {share:g} of the big reads"
            vs = {f"k{top}": [gap, gap - half, gap + half]}
            rows.append(common | {"policy": policy, "accuracy": always + gap, "tokens": cost, "vs": vs})
    for k, labels in table.correct.items():
        cost = float(table.tokens[k].mean())
        rows.append(common | {"policy": f"always-k{k}", "accuracy": float(labels.mean()), "tokens": cost})
    return rows


def _published_curves(table: Table, seeds: int) -> dict[str, list[np.ndarray]]:
    """For each rule and seed: the share of big reads, and the mean gap, cost and deviation of the gap, by price."""
    top, curves = table.ks[-1], dict[str, list[np.ndarray]]()
    always = table.correct[top].astype(np.float64)
    for seed in range(seeds):
        fold = np.random.default_rng(seed).permutation(len(always)) % 5
        found: dict[str, dict[float, list[np.ndarray]]] = {}
        for number in range(5):
            train, rest = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
            sample = sample_of(table, train, ("linear",))
            fitted = fit_probabilities(sample)
            for name in ("ladder", "ladder, one purchase ahead"):
                for step in ladder_path(sample, fitted, ahead=VARIANTS[name][1]):
                    run = ladder(table, rest, sample, fitted, step)
                    part = np.stack([run.largest == top, run.right - always[rest], run.tokens])
                    found.setdefault(name, {}).setdefault(step.t, []).append(part)
        for name, by_price in found.items():
            # A price that some fold left out has no figure.
            whole = [np.hstack(parts) for parts in by_price.values() if len(parts) == 5]
            points = np.array([[*part.mean(axis=1), part[1].std()] for part in whole])
            curves.setdefault(name, []).append(points[np.argsort(points[:, 0], kind="stable")])
    return curves


def report(rows: list[dict[str, object]]) -> None:
    """Print the figures as a table, and the demo's ladder beside what is expected of it."""
    heads = ("table", "split", "policy", "n", "accuracy", "tokens", "time", "vs k1", "vs k5")
    heads += ("AUROC k0", "AUROC shown", "accuracy at 80 %", "coverage at 5 %", "ECE")
    print("|", " | ".join(heads), "|")
    print("|---" * len(heads) + "|")
    for row in rows:
        vs = row.get("vs") or {}
        assert isinstance(vs, dict)
        gaps = [f"{vs[k][0]:+.3f} [{vs[k][1]:+.3f}, {vs[k][2]:+.3f}]" if k in vs else "" for k in ("k1", "k5")]
        names = ("auroc_k0", "auroc_confidence", "accuracy_at_80", "coverage_at_5", "ece")
        cells = [row["table"], row["split"], row["policy"], row["n"]]
        cells += [_number(row.get(name)) for name in ("accuracy", "tokens", "time")] + gaps
        print("|", " | ".join(map(str, cells + [_number(row.get(name)) for name in names])), "|")
    for row in rows:
        if (row["table"], row["split"], row["policy"]) == ("demo", "test", "ladder"):
            vs = row["vs"]
            assert isinstance(vs, dict)
            for name, bound, is_most in TARGETS:
                value = vs[name[3:]][0] if name.startswith("vs ") else row[name]
                met = value <= bound if is_most else value >= bound
                side, verdict = "most" if is_most else "least", "met" if met else "MISSED"
                print(f"{name} {value:.3f}, expected at {side} {bound}: {verdict}")
        if row["policy"] == "ladder, logistic, 0.5 of the big reads":
            vs, bound = row["vs"], PUBLISHED_TARGETS[str(row["table"])]
            assert isinstance(vs, dict)
            met = "met" if vs["k5"][0] >= bound else "MISSED"
            print(f"{row['table']} at half of the big reads {vs['k5'][0]:+.3f}, expected at least {bound}: {met}")


def _number(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else ""


def main() -> None:
    """Measure every table that is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--policies", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--tables", nargs="+", choices=["demo", "nq", "squad"], default=["demo", "nq", "squad"])
    arguments = parser.parse_args()
    rows: list[dict[str, object]] = []
    for name in arguments.tables:
        path = shared() / "data" / "llama8b-outcomes" / f"{name}.jsonl"
        if name == "demo":
            rows += mean_of(measure_demo(arguments.splits, arguments.policies))
        elif path.exists():
            rows += measure_published(path, arguments.splits)
        else:
            print(f"{path} is not there: skipped; BENCH_SHARED names the folder that has it")
        # After each table: the next may take minutes.
        OUT.parent.mkdir(parents=True, exist_ok=True)
        OUT.write_text(json.dumps(rows, indent=1) + "\n")
    report(rows)


if __name__ == "__main__":
    main()
