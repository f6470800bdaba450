"""What is found for the demo's follow-ups, by how they are made to stand alone: `make bench-conversations`.

Prompts, guard and threshold were chosen on the train conversations; the test conversations only measure. Each follow-up
is rewritten by the embedded reader, and every sixth is also answered from five passages, to compare the cost.
"""

import asyncio
import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from app.answer.run import Upstreams  # noqa: E402
from app.answer.standalone import rewritten  # noqa: E402
from app.core.available import Passage  # noqa: E402
from app.core.standalone import joined, probability, small_talk, stands_alone  # noqa: E402
from app.corpus.ingest import embedded_text  # noqa: E402
from app.offline.lines import read_lines  # noqa: E402
from app.ports import Embedder, Prompt, Reader  # noqa: E402
from app.settings import Settings  # noqa: E402
from app.upstream.embedders import open_embedder  # noqa: E402
from app.upstream.parts import resilience_of  # noqa: E402
from app.upstream.readers import open_reader  # noqa: E402

DEMO = ROOT / "demo"
OUT = ROOT / "build" / "bench" / "conversations"
RESAMPLES = 2000
COMPARED_EVERY = 6
MAX_TOKENS = 24


class Recording:
    """A reader that keeps its last reply."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.text = ""

    async def chat(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Pass the request on."""
        reply = await self._reader.chat(body)
        self.text = str(reply["choices"][0]["message"]["content"]).strip()
        return reply

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._reader, name)


class Corpus:
    """The demo's passages with their vectors."""

    def __init__(self, passages: Sequence[Passage], vectors: np.ndarray, embedder: Embedder) -> None:
        self._passages, self._vectors, self._embedder = passages, vectors, embedder

    @classmethod
    async def of(cls, embedder: Embedder) -> "Corpus":
        """Embed all passages."""
        rows = [row for _, row in read_lines(DEMO / "passages.jsonl")]
        passages = [Passage(str(row["id"]), str(row["title"]), str(row["text"])) for row in rows]
        return cls(
            passages, np.array(await embedder.embed_passages([embedded_text(one) for one in passages])), embedder
        )

    async def search(self, text: str) -> list[Passage]:
        """The nearest five."""
        scores = self._vectors @ np.array(await self._embedder.embed_query(text))
        return [self._passages[place] for place in np.argsort(-scores)[:5].tolist()]


async def measure(row: Mapping[str, Any], corpus: Corpus, reader: Reader, *, compare: bool) -> dict[str, Any]:
    """The texts of every way, whether each finds the passage, and the cost of the rewrite."""
    *before, (_, message) = [(one["role"], one["content"]) for one in row["messages"] if not small_talk(one["content"])]
    users = [text for role, text in before if role == "user"]
    recording = Recording(reader)
    guarded, how = await rewritten(before, message, Upstreams(recording, None, None), None)  # type: ignore[arg-type]
    texts = {
        "as typed": message,
        "with the message before": joined(message, users),
        "with the whole conversation": " ".join(text for _, text in reversed([*before, ("user", message)])),
        "rewrite, unguarded": recording.text or message,
        "rewrite": guarded,
        "written by hand": row["question"],
    }
    alone = stands_alone(message, users)
    for name in ("with the message before", "rewrite, unguarded", "rewrite"):
        texts[f"{name}; classifier"] = message if alone else texts[name]
    found = {}
    for name, text in texts.items():
        passages = [one.id for one in await corpus.search(text)]
        found[name] = [row["passage"] in passages[:1], row["passage"] in passages]
    measured = {
        "conversation": row["conversation"],
        "split": row["split"],
        "kind": row["kind"],
        "stands_alone": row["stands_alone"],
        "probability": probability(message, users),
        "how": how.how,
        "texts": texts,
        "found": found,
        "tokens": how.usage.prompt_tokens + how.usage.completion_tokens if how.usage else 0,
        "ms": how.ms,
    }
    if compare:
        prompt = Prompt(row["question"], tuple(await corpus.search(row["question"])))
        began = time.perf_counter()
        answer = await reader.generate(prompt, max_tokens=MAX_TOKENS)
        measured["read"] = [
            (time.perf_counter() - began) * 1000.0,
            answer.prompt_tokens + answer.completion_tokens,
        ]
    return measured


def figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The share of follow-ups whose passage is first, and among five, with intervals over conversations."""
    groups: dict[str, list[int]] = {}
    for place, row in enumerate(rows):
        groups.setdefault(row["conversation"], []).append(place)
    members, generator = list(groups.values()), np.random.default_rng(3)
    draws = [
        np.concatenate([members[one] for one in generator.integers(0, len(members), len(members))])
        for _ in range(RESAMPLES)
    ]
    result: dict[str, Any] = {"n": len(rows), "conversations": len(members)}
    for name in rows[0]["found"]:
        values = np.array([row["found"][name] for row in rows], float)
        low, high = np.quantile([values[drawn].mean(axis=0) for drawn in draws], (0.025, 0.975), axis=0)
        result[name] = [
            " ".join(f"{number:.3f}" for number in (values[:, at].mean(), low[at], high[at])) for at in (0, 1)
        ]
    return result


def thresholds(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What is found at each threshold, and how many messages are rewritten."""
    result = {}
    for threshold in (0.0, 0.3, 0.4, 0.45, 0.5, 0.52, 0.55, 0.6, 0.7, 1.01):
        chosen = ["as typed" if row["probability"] >= threshold else "rewrite" for row in rows]
        found = np.array([row["found"][name] for row, name in zip(rows, chosen, strict=True)], float).mean(axis=0)
        result[str(threshold)] = [*found.round(3).tolist(), round(chosen.count("rewrite") / len(rows), 3)]
    return result


async def main() -> None:
    """Measure every follow-up, and print."""
    settings = Settings.of()
    OUT.mkdir(parents=True, exist_ok=True)
    rows = [row for _, row in read_lines(DEMO / "conversations.jsonl") if row["passage"]]
    async with AsyncExitStack() as stack:
        resilience = resilience_of(settings)
        embedder = await stack.enter_async_context(open_embedder(settings.embedder, resilience))
        opening = open_reader(settings.reader, resilience, data_dir=OUT, at_once=1)
        reader = await stack.enter_async_context(opening)
        corpus = await Corpus.of(embedder)
        measured = []
        for number, row in enumerate(rows):
            measured.append(await measure(row, corpus, reader, compare=number % COMPARED_EVERY == 0))
            if number % 20 == 0:
                print(f"{number} of {len(rows)}", file=sys.stderr, flush=True)
    (OUT / "measured.json").write_text(json.dumps(measured, indent=1))
    report(measured)


def report(measured: Sequence[Mapping[str, Any]]) -> None:
    """Print all figures."""
    for split in ("train", "test"):
        of_split = [row for row in measured if row["split"] == split]
        print(split, json.dumps(figures(of_split), indent=1))
        print(
            split,
            "that do not stand alone",
            json.dumps(figures([r for r in of_split if not r["stands_alone"]]), indent=1),
        )
        print(split, "thresholds", json.dumps(thresholds(of_split)))
        passed = [row["how"] == "rewritten" for row in of_split if not row["stands_alone"]]
        print(split, "pass the guard", round(float(np.mean(passed)), 3))
    compared = [row for row in measured if "read" in row]
    ms, tokens = np.array([[row["ms"], row["tokens"]] for row in compared]).mean(axis=0)
    read_ms, read_tokens = np.array([row["read"] for row in compared]).mean(axis=0)
    cost = {
        "n": len(compared),
        "rewrite tokens": round(float(tokens)),
        "read tokens": round(float(read_tokens)),
        "time of a rewrite to a read of five": round(float(ms / read_ms), 2),
    }
    print("cost", json.dumps(cost))


if __name__ == "__main__":
    asyncio.run(main())
