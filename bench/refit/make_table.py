"""Write a synthetic outcome table of any size, row by row: `python bench/refit/make_table.py 100000 OUT.jsonl`.

Correctness, signals, evidence, tokens and milliseconds are drawn to look like a small reader's: knowledge shows in the
closed-book signals, passages help where it is missing, the support of an answer tells whether it is right, and one fact
in five is asked in two phrasings. One question in twenty is out of corpus.
"""

import argparse
import gzip
import math
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

sys.path.insert(0, str(Path(__file__).parents[2]))

from app.offline.lines import SCHEMA, write_vector

IDENTITY = {
    "reader": "synthetic",
    "quantisation": "none",
    "chat_template": "0",
    "prompts": "0",
    "writing": "synthetic",
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
DIMENSION = 64


def rows(n: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield n rows."""
    rng = random.Random(seed)
    fact = 0
    for number in range(n):
        if rng.random() < 0.8 or number == 0:
            fact, knowledge = fact + 1, rng.gauss(0.0, 1.0)
        luck, outside = rng.random(), fact % 20 == 0
        evidence = _search(outside=outside, rng=rng)
        row: dict[str, Any] = {
            "id": f"q{number}",
            "group": f"fact-{fact}",
            "question": f"What is the answer to question {number} about fact {fact}?",
            "gold": [] if outside else [f"answer {fact}"],
            "tags": {"popularity": fact % 5} | ({"kind": "made up"} if outside else {}),
            "vector": _vector(fact, rng),
        }
        if outside:
            row["out_of_corpus"] = True
        for k, (level, slope) in SKILL.items():
            score = level + slope * knowledge + 0.7 * rng.gauss(0.0, 1.0) - 4.0 * outside
            right = (luck if rng.random() < 0.7 else rng.random()) < 1.0 / (1.0 + math.exp(-score))
            row[f"k{k}"] = {
                "answer": f"answer {fact}" if right else "something else",
                "correct": right,
                "signals": (signals := _signals(score, rng)),
                "prompt_tokens": 40 + 130 * k,
                "completion_tokens": rng.randint(2, 9),
                "ms": round(60.0 + 25.0 * k + rng.expovariate(0.1), 3),
            }
            evidence |= {f"k{k}.{name}": value for name, value in signals.items()} | _support(k, rng, right=right)
        row["evidence"] = evidence | _agreement(rng)
        yield row


def _search(*, outside: bool, rng: random.Random) -> dict[str, float]:
    cosine = rng.gauss(0.45 if outside else 0.7, 0.06)
    values = {"cosine": cosine, "gap": rng.expovariate(20.0), "gap_last": rng.expovariate(8.0)}
    values |= {"spread": rng.expovariate(15.0), "coverage": rng.random(), "coverage_max": 0.5 + 0.5 * rng.random()}
    return {f"search.{name}": round(value, 7) for name, value in values.items()} | {"scope.script:LATIN": 1.0}


def _support(k: int, rng: random.Random, *, right: bool) -> dict[str, float]:
    best = min(1.0, max(0.0, rng.gauss(0.8 if right else 0.3, 0.25)))
    values = {"support": best * rng.random(), "support_max": best, "support_mean": best / 2, "joint": best * 0.8}
    counts = {"tokens": float(rng.randint(2, 9)), "new_words": float(rng.randint(1, 4))}
    return {f"k{k}.{name}": round(value, 7) for name, value in (values | counts).items()}


def _agreement(rng: random.Random) -> dict[str, float]:
    pairs = [(a, b) for a in SKILL for b in SKILL if a < b]
    return {f"k{a}~k{b}.{name}": round(rng.random(), 3) for a, b in pairs for name in ("agreement", "overlap")}


def _vector(fact: int, rng: random.Random) -> str:
    """Near one of forty topics."""
    topic = random.Random(fact % 40)
    vector = [topic.gauss(0.0, 1.0) + 0.4 * rng.gauss(0.0, 1.0) for _ in range(DIMENSION)]
    length = math.hypot(*vector)
    return write_vector([value / length for value in vector])


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
        file.write(orjson.dumps({"schema": SCHEMA, "identity": IDENTITY}) + b"\n")
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
