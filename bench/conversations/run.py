"""What is found for the demo's follow-ups, by how they are made to stand alone: `make bench-conversations`.

Prompts, guard and threshold were chosen on the train conversations; the test conversations only measure. Each follow-up
is rewritten by the embedded reader, and every eighth is also answered from five passages, to compare the cost.
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
from app.core.available import Passage, Usage  # noqa: E402
from app.core.standalone import joined, probability, small_talk, stands_alone  # noqa: E402
from app.corpus.ingest import embedded_text  # noqa: E402
from app.offline.lines import read_lines  # noqa: E402
from app.ports import Embedder, Prompt, Reader  # noqa: E402
from app.settings import read_settings  # noqa: E402
from app.upstream.embedders import open_embedder  # noqa: E402
from app.upstream.parts import resilience_of  # noqa: E402
from app.upstream.readers import open_reader  # noqa: E402

DEMO = ROOT / "demo"
OUT = ROOT / "build" / "bench" / "conversations"
RESAMPLES = 2000
COMPARED_EVERY = 8
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

    async def search(self, texts: Sequence[str]) -> dict[str, list[Passage]]:
        """The nearest five of each text; all are embedded together, which is faster than one by one."""
        wanted = sorted(set(texts))
        scores = np.array(await self._embedder.embed_passages(wanted)) @ self._vectors.T
        best = np.argsort(-scores, axis=1)[:, :5].tolist()
        return {text: [self._passages[at] for at in places] for text, places in zip(wanted, best, strict=True)}


async def rewrite(row: Mapping[str, Any], reader: Reader) -> dict[str, Any]:
    """The texts of every way to search for a follow-up, and the cost of its rewrite."""
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
    usage = how.usage or Usage()
    return {
        "id": row["id"],
        "conversation": row["conversation"],
        "split": row["split"],
        "kind": row["kind"],
        "stands_alone": row["stands_alone"],
        "probability": probability(message, users),
        "how": how.how,
        "passage": row["passage"],
        "texts": texts,
        "tokens": usage.prompt_tokens + usage.completion_tokens,
        "ms": how.ms,
    }


async def read_five(question: str, passages: Sequence[Passage], reader: Reader) -> list[float]:
    """The time and the tokens of an answer from five passages."""
    began = time.perf_counter()
    answer = await reader.generate(Prompt(question, tuple(passages)), max_tokens=MAX_TOKENS)
    return [(time.perf_counter() - began) * 1000.0, answer.prompt_tokens + answer.completion_tokens]


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
    """Rewrite and search every follow-up, and print. What was rewritten before is not rewritten again."""
    settings = read_settings()
    OUT.mkdir(parents=True, exist_ok=True)
    done = OUT / "rewrites.jsonl"
    measured = [dict(row) for _, row in read_lines(done)] if done.exists() else []
    known = {row["id"] for row in measured}
    rows = [row for _, row in read_lines(DEMO / "conversations.jsonl") if row["passage"] and row["id"] not in known]
    # The test conversations first, and those that need a rewrite: what is there when it is stopped is worth most.
    rows.sort(key=lambda row: (row["stands_alone"], row["split"] == "train"))
    async with AsyncExitStack() as stack:
        resilience = resilience_of(settings)
        embedder = await stack.enter_async_context(open_embedder(settings.embedder, resilience))
        opening = open_reader(settings.reader, resilience, data_dir=OUT, at_once=1)
        reader = await stack.enter_async_context(opening)
        corpus = await Corpus.of(embedder)
        questions = await corpus.search([row["question"] for row in rows]) if rows else {}
        with done.open("a", encoding="utf-8") as lines:
            for number, row in enumerate(rows):
                one = await rewrite(row, reader)
                if number % COMPARED_EVERY == 0:
                    one["read"] = await read_five(row["question"], questions[row["question"]], reader)
                lines.write(json.dumps(one) + "\n")
                lines.flush()
                measured.append(one)
        found = await corpus.search([text for row in measured for text in row["texts"].values()])
    for row in measured:
        ids = {name: [one.id for one in found[text]] for name, text in row["texts"].items()}
        row["found"] = {name: [row["passage"] in five[:1], row["passage"] in five] for name, five in ids.items()}
    report(measured)


def rates(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """How often the passage is first, as typed and rewritten, for messages that stand alone and for others."""
    sides = {str(alone): [row for row in rows if row["stands_alone"] == alone] for alone in (False, True)}
    return {
        name: {side: float(np.mean([row["found"][name][0] for row in part])) for side, part in sides.items()}
        for name in ("as typed", "rewrite")
    }


def report(measured: Sequence[Mapping[str, Any]]) -> None:
    """Print all figures, and store what a wrong decision of the classifier costs."""
    (OUT / "rates.json").write_text(json.dumps(rates([row for row in measured if row["split"] == "train"])))
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
