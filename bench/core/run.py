"""CPU time of the decisions about stored questions, with the shipped calibrator: `make bench-core`.

Every question is climbed as the gateway does it, with its stored passages and answers in place of upstream calls. Then
everything is bought, in the order in which the ladder can buy it: the evidence and the heads of five passages.
"""

import gc
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from app.calibrators.store import ArtifactStore  # noqa: E402
from app.core.available import Answer, Available, Passage, Usage  # noqa: E402
from app.core.effective_policy import EffectivePolicy, resolve  # noqa: E402
from app.core.ladder import Read, Search, Step, Stop, conclude, next_step  # noqa: E402
from app.core.policy import AskOptions, Policy  # noqa: E402
from app.offline.lines import read_lines, read_vector  # noqa: E402
from app.offline.upgrade import read_passages  # noqa: E402

OUT = ROOT / "build" / "bench" / "core.json"
QUESTIONS, ROUNDS = 200, 15


class Stored:
    """A question of the table, with its stored vector, passages and answers."""

    def __init__(self, row: dict[str, Any], corpus: dict[str, Passage]) -> None:
        self.text = row["question"]
        self.vector = read_vector(row["vector"], row["id"])
        cosine = row["evidence"]["search.cosine"]
        # Only the best score is stored; the others must fall.
        found = [replace(corpus[one], score=cosine - 0.05 * place) for place, one in enumerate(row["passages"])]
        self.passages = tuple(found)
        self.answers = {
            k: Answer(
                k,
                row[f"k{k}"]["answer"],
                {name: value for name, value in row[f"k{k}"]["signals"].items() if value is not None},
                Usage(row[f"k{k}"]["prompt_tokens"], row[f"k{k}"]["completion_tokens"]),
                passages_read=k,
            )
            for k in (0, 1, 5)
        }


def decide(policy: EffectivePolicy, one: Stored) -> int:
    """Climb as the loop of `app.answer` does; returns the number of steps."""
    available, steps = Available.at_first(one.text, policy.stats, one.vector), list[Step]()
    while True:
        step = next_step(policy, available)
        steps.append(step)
        match step.action:
            case Stop():
                conclude(policy, available, step)
                return len(steps)
            case Search():
                available = available.found(one.passages)
            case Read(k):
                available = available.answered(one.answers[k])


def buy_all(policy: EffectivePolicy, one: Stored) -> Available:
    """All evidence: the search, and every answer beside five passages."""
    available = Available.at_first(one.text, policy.stats, one.vector).found(one.passages)
    for answer in one.answers.values():
        available = available.answered(answer)
    return available


def predict(policy: EffectivePolicy, everything: Available) -> None:
    """One value of each head of the last state."""
    for k in everything.answers:
        policy.probability(everything, k)


def microseconds(work: Callable[[], object], count: int) -> float:
    """CPU time per item, the median of some rounds."""
    taken = []
    for _ in range(ROUNDS):
        began = time.process_time()
        work()
        taken.append((time.process_time() - began) / count * 1e6)
    return sorted(taken)[len(taken) // 2]


def main() -> None:
    """Measure and print."""
    store = ArtifactStore(ROOT / "calibrators" / "demo")
    version = store.current()
    assert version is not None
    artifact = store.load(version)
    policy = resolve(AskOptions(policy=Policy.LADDER), artifact, ks=artifact.ks, stats=store.load_stats(artifact))
    corpus = read_passages(ROOT / "demo" / "passages.jsonl")
    lines = [row for _, row in read_lines(ROOT / "demo" / "outcomes.jsonl.gz")][1:]
    stored = [Stored(row, corpus) for row in lines[:: len(lines) // QUESTIONS]]
    gc.freeze()
    everything = [buy_all(policy, one) for one in stored]
    steps = sum(decide(policy, one) for one in stored)
    figures = {
        "questions": len(stored),
        "steps": round(steps / len(stored), 2),
        "decision_us": microseconds(lambda: [decide(policy, one) for one in stored], len(stored)),
        "evidence_us": microseconds(lambda: [buy_all(policy, one) for one in stored], len(stored)),
        "heads_us": microseconds(lambda: [predict(policy, one) for one in everything], len(stored)),
    }
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(figures, indent=1) + "\n")
    for name, value in figures.items():
        print(f"{name:14}{value:10.5g}")


if __name__ == "__main__":
    main()
