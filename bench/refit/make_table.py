"""Write a synthetic outcome table of any size, row by row: `python bench/refit/make_table.py 100000 OUT.jsonl`.

Correctness, signals, tokens and milliseconds are drawn to look like a small reader's: knowledge shows in the
closed-book signals, passages help where it is missing, and one fact in five is asked in two phrasings.
"""

import argparse
import gzip
import math
import random
from pathlib import Path

import orjson

IDENTITY = {
    "reader": "synthetic",
    "quantisation": "none",
    "chat_template": "0",
    "prompts": "0",
    "max_tokens": 24,
    "stop": ["\n"],
    "logprobs": "top20",
    "embedder": "synthetic",
    "collection": "synthetic",
    "ks": [0, 1, 5],
}
# Skill of the answer at each k: its level, and the weight of the reader's knowledge.
SKILL = {0: (-0.4, 2.2), 1: (0.4, 1.0), 5: (0.9, 0.6)}
SUFFIXES = ("", "@1")


def rows(n: int, seed: int):  # noqa: ANN201
    """Yield n rows."""
    rng = random.Random(seed)
    fact = 0
    for number in range(n):
        if rng.random() < 0.8 or number == 0:
            fact, knowledge = fact + 1, rng.gauss(0.0, 1.0)
        luck = rng.random()
        row = {
            "id": f"q{number}",
            "group": f"fact-{fact}",
            "question": f"What is the answer to question {number} about fact {fact}?",
            "gold": [f"answer {fact}"],
            "tags": {"popularity": fact % 5},
        }
        for k, (level, slope) in SKILL.items():
            score = level + slope * knowledge + 0.7 * rng.gauss(0.0, 1.0)
            right = (luck if rng.random() < 0.7 else rng.random()) < 1.0 / (1.0 + math.exp(-score))
            row[f"k{k}"] = {
                "answer": f"answer {fact}" if right else "something else",
                "correct": right,
                "signals": _signals(score, rng),
                "prompt_tokens": 40 + 130 * k,
                "completion_tokens": rng.randint(2, 9),
                "ms": round(60.0 + 25.0 * k + rng.expovariate(0.1), 3),
            }
        yield row


def _signals(score: float, rng: random.Random) -> dict[str, float]:
    values = {}
    for length, suffix in enumerate(reversed(SUFFIXES)):
        seen = score + 0.4 * length * rng.gauss(0.0, 1.0)
        values["seq_logprob" + suffix] = round(-math.log1p(math.exp(-seen)), 7)
        values["neg_entropy" + suffix] = round(-1.5 * math.log1p(math.exp(0.3 - 0.8 * seen)), 7)
        values["margin" + suffix] = round(abs(seen) + rng.random(), 7)
    return values


def write_table(out: Path, count: int, seed: int = 0) -> None:
    """Write a table of `count` rows; a name that ends in .gz is compressed."""
    with (gzip.open if out.suffix == ".gz" else open)(out, "wb") as file:
        file.write(orjson.dumps({"schema": 1, "identity": IDENTITY}) + b"\n")
        for row in rows(count, seed):
            file.write(orjson.dumps(row) + b"\n")


def main() -> None:
    """Read the arguments and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=int)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    write_table(arguments.out, arguments.rows, arguments.seed)


if __name__ == "__main__":
    main()
