"""Serve the demo for real and ask test questions with the ladder and with always-five, in turn: `make bench-served`.

Each question is asked once by each policy, in random order, so that other load on the machine affects both. The ratio
of the mean times has an interval over questions (bootstrap, 95 %).
"""

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from app.cli.console import progress  # noqa: E402
from app.offline.builder import load  # noqa: E402
from app.offline.lines import read_lines  # noqa: E402
from app.offline.refit.splits import split  # noqa: E402
from tests.e2e.processes import Gateway, gateway  # noqa: E402

DEMO = ROOT / "demo"
OUT = ROOT / "build" / "bench" / "served.json"
POLICIES = ("ladder", "always")
RESAMPLES = 2000


def questions(count: int) -> list[str]:
    """Questions of the test split that the corpus can answer, drawn at random."""
    test = split(load(DEMO / "outcomes.jsonl.gz"))[-1].outcomes
    wanted = {one for one, outside in zip(test.ids, test.out_of_corpus.tolist(), strict=True) if not outside}
    rows = [str(row["question"]) for _, row in read_lines(DEMO / "questions.jsonl") if row["id"] in wanted]
    return random.Random(5).sample(rows, min(count, len(rows)))


def ask(running: Gateway, question: str, policy: str) -> dict[str, Any]:
    """The receipt; nothing is withheld, so that both policies give their answers."""
    reply = running.ask(question, policy=policy, abstain=False)
    reply.raise_for_status()
    receipt: dict[str, Any] = reply.json()
    return receipt


def measure(running: Gateway, asked: list[str]) -> dict[str, list[tuple[float, int]]]:
    """Milliseconds and tokens of every question, by policy."""
    found: dict[str, list[tuple[float, int]]] = {policy: [] for policy in POLICIES}
    order = random.Random(7)
    ask(running, asked[0], POLICIES[0])
    with progress() as shown:
        task = shown.add_task("asking", total=len(asked))
        for question in asked:
            for policy in order.sample(POLICIES, 2):
                receipt = ask(running, question, policy)
                found[policy].append((receipt["timings_ms"]["total"], tokens(receipt["usage"])))
            shown.advance(task)
    return found


def tokens(usage: dict[str, Any]) -> int:
    """All tokens of a question, of the probe and of every read."""
    return sum(sum(usage[stage].values()) for stage in ("probe", "read") if usage[stage])


def ratio(ours: list[float], theirs: list[float]) -> dict[str, float]:
    """The ratio of the means, with its interval over questions."""
    a, b = np.array(ours), np.array(theirs)
    drawn = np.random.default_rng(11).integers(0, len(a), (RESAMPLES, len(a)))
    low, high = np.quantile(a[drawn].mean(axis=1) / b[drawn].mean(axis=1), (0.025, 0.975))
    return {"value": round(float(a.mean() / b.mean()), 3), "low": round(float(low), 3), "high": round(float(high), 3)}


def main() -> None:
    """Serve, ask and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=100)
    asked = questions(parser.parse_args().questions)
    with (
        tempfile.TemporaryDirectory() as folder,
        gateway(Path(folder), seed=str(DEMO / "passages.jsonl"), reader_timeout_s="120") as running,
    ):
        found = measure(running, asked)
    ladder, always = ([list(column) for column in zip(*found[policy], strict=True)] for policy in POLICIES)
    figures = {
        "questions": len(asked),
        "mean_ms": {"ladder": round(float(np.mean(ladder[0]))), "always": round(float(np.mean(always[0])))},
        "time": ratio(ladder[0], always[0]),
        "tokens": ratio(ladder[1], always[1]),
    }
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(figures, indent=1) + "\n")
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
