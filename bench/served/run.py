"""Serve the demo for real and ask test questions with the ladder and with always-five, in turn: `make bench-served`.

Each question is asked once by each policy, in random order, so that other load on the machine affects both. The ratio
of the mean times has an interval over questions (bootstrap, 95 %). With `--chat` each is the first turn of a streamed
chat with a system prompt, and the time is that to the first piece of text.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from app.cli.console import progress  # noqa: E402
from app.offline.builder import load  # noqa: E402
from app.offline.lines import read_lines  # noqa: E402
from app.offline.refit.splits import split  # noqa: E402
from tests.e2e.processes import Gateway, gateway  # noqa: E402

DEMO = ROOT / "demo"
OUT = ROOT / "build" / "bench"
POLICIES = ("ladder", "always")
STAGES = ("rewrite", "probe", "read", "write")
SYSTEM = "You are a helpful assistant. Answer in one sentence."
RESAMPLES = 2000


def questions(count: int) -> list[str]:
    """Questions of the test split that the corpus can answer, drawn at random."""
    test = split(load(DEMO / "outcomes.jsonl.gz"))[-1].outcomes
    wanted = {one for one, outside in zip(test.ids, test.out_of_corpus.tolist(), strict=True) if not outside}
    rows = [str(row["question"]) for _, row in read_lines(DEMO / "questions.jsonl") if row["id"] in wanted]
    return random.Random(5).sample(rows, min(count, len(rows)))


Ask = Callable[[Gateway, str, str], tuple[float, int]]


def ask(running: Gateway, question: str, policy: str) -> tuple[float, int]:
    """Milliseconds and tokens of an answer; nothing is withheld, so that both policies give their answers."""
    reply = running.ask(question, policy=policy, abstain=False)
    reply.raise_for_status()
    receipt: dict[str, Any] = reply.json()
    return receipt["timings_ms"]["total"], tokens(receipt["usage"])


def chat(running: Gateway, question: str, policy: str) -> tuple[float, int]:
    """Milliseconds to the first piece of text, and the tokens of the whole turn."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    body = {"model": f"fetchwise-{policy}", "messages": messages, "temperature": 0, "max_tokens": 64, "stream": True}
    began, first_ms, usage = time.perf_counter(), None, None
    with httpx.stream("POST", f"{running.url}/v1/chat/completions", json=body, timeout=120) as reply:
        reply.raise_for_status()
        for line in reply.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line.removeprefix("data: "))
            if first_ms is None and any(choice["delta"].get("content") for choice in chunk["choices"]):
                first_ms = (time.perf_counter() - began) * 1000.0
            usage = chunk["fetchwise"]["usage"] if "fetchwise" in chunk else usage
    if first_ms is None or usage is None:
        raise RuntimeError(f"no answer to {question!r}")
    return first_ms, tokens(usage)


def measure(running: Gateway, asked: list[str], ask: Ask) -> dict[str, list[tuple[float, int]]]:
    """Milliseconds and tokens of every question, by policy."""
    found: dict[str, list[tuple[float, int]]] = {policy: [] for policy in POLICIES}
    order = random.Random(7)
    ask(running, asked[0], POLICIES[0])
    with progress() as shown:
        task = shown.add_task("asking", total=len(asked))
        for question in asked:
            for policy in order.sample(POLICIES, 2):
                found[policy].append(ask(running, question, policy))
            shown.advance(task)
    return found


def tokens(usage: dict[str, Any]) -> int:
    """All tokens of a question, of every stage."""
    return sum(sum(usage[stage].values()) for stage in STAGES if usage[stage])


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
    parser.add_argument("--chat", action="store_true", help="chat mode, streamed")
    arguments = parser.parse_args()
    asked = questions(arguments.questions)
    with (
        tempfile.TemporaryDirectory() as folder,
        gateway(Path(folder), seed=str(DEMO / "passages.jsonl"), reader_timeout_s="120") as running,
    ):
        found = measure(running, asked, chat if arguments.chat else ask)
    ladder, always = ([list(column) for column in zip(*found[policy], strict=True)] for policy in POLICIES)
    figures = {
        "mode": "chat" if arguments.chat else "answer",
        "questions": len(asked),
        "mean_ms": {"ladder": round(float(np.mean(ladder[0]))), "always": round(float(np.mean(always[0])))},
        "time": ratio(ladder[0], always[0]),
        "tokens": ratio(ladder[1], always[1]),
    }
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / ("served-chat.json" if arguments.chat else "served.json")).write_text(json.dumps(figures, indent=1) + "\n")
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
