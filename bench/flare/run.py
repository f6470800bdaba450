"""Compare FLARE with full answers that are written in one go, on demo questions and a real reader: `make bench-flare`.

FLARE (Jiang et al., 2023) writes sentence by sentence. Where a token of a sentence is unsure, it searches with that
sentence, without its unsure words, and writes it again with what was found. Both arms share the first search and the
short answer, use the same template, and take turns in random order.
"""

import argparse
import asyncio
import json
import math
import random
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from app.answer.writing import tokens_of  # noqa: E402
from app.cli.console import progress  # noqa: E402
from app.core.available import Passage, Usage  # noqa: E402
from app.core.corpus_stats import NO_STATS  # noqa: E402
from app.core.evidence import Asked  # noqa: E402
from app.core.labels import judge  # noqa: E402
from app.core.prompts import WRITING  # noqa: E402
from app.core.sentences import LongAnswer  # noqa: E402
from app.corpus.ingest import ingest  # noqa: E402
from app.offline.lines import read_lines  # noqa: E402
from app.ports import Prompt  # noqa: E402
from app.settings import read_settings  # noqa: E402
from app.upstream.parts import Parts, open_parts  # noqa: E402
from bench.served.run import ratio  # noqa: E402

DEMO = ROOT / "demo"
OUT = ROOT / "build" / "bench" / "flare.json"
COLLECTION = "flare"
# Both arms: passages of the first search, and limits on the length.
K, MAX_TOKENS, MAX_SENTENCES = 1, 120, 6
# FLARE searches again where a token is less likely than this.
UNSURE = 0.4


@dataclass
class Run:
    """What one arm wrote, and what it cost."""

    supported: list[bool] = field(default_factory=list)
    text: str = ""
    tokens: int = 0
    searches: int = 0
    ms: float = 0.0


@dataclass(frozen=True)
class Draft:
    """The next piece of text: its words as the reader wrote them, with the probability of each token."""

    answer: LongAnswer
    said: str
    tokens: Sequence[tuple[str, float]]
    usage: Usage
    ended: bool

    @property
    def unsure(self) -> bool:
        """Whether a token is unlikely."""
        return any(logprob < math.log(UNSURE) for _, logprob in self.tokens)

    @property
    def query(self) -> str:
        """The text without its unlikely tokens; all of it if little is left."""
        sure = "".join(token for token, logprob in self.tokens if logprob >= math.log(UNSURE)).strip()
        return sure if len(sure.split()) > 2 else self.said


class Writer:
    """Writes both ways with the parts of a gateway."""

    def __init__(self, parts: Parts, row: Mapping[str, Any], passages: Sequence[Passage], short: str) -> None:
        self._parts = parts
        self._question = str(row["question"])
        self._asked = Asked(self._question, NO_STATS)
        self._passages = list(passages)
        self._short = short

    async def at_once(self) -> Run:
        """One call, as `style: full` does it."""
        began = time.perf_counter()
        draft = await self._draft(self._passages, "", MAX_TOKENS, sentences=None)
        supported = [one.mark == "supported" for one in draft.answer.sentences]
        return Run(supported, draft.answer.text, _total(draft.usage), 0, _since(began))

    async def flare(self) -> Run:
        """Sentence by sentence; a sentence with an unsure token is written again with what it finds."""
        began, run, left = time.perf_counter(), Run(), MAX_TOKENS
        raw = ""
        while left > 0 and len(run.supported) < MAX_SENTENCES:
            read = self._passages
            draft = await self._draft(read, raw, left, sentences=1)
            run.tokens += _total(draft.usage)
            if draft.unsure and draft.said.strip():
                vector = await self._parts.embedder.embed_query(draft.query)
                found = await self._parts.vectors.search(COLLECTION, vector, limit=K)
                run.searches += 1
                read = [*read, *(one for one in found if one.id not in {other.id for other in read})]
                draft = await self._draft(read, raw, left, sentences=1)
                run.tokens += _total(draft.usage)
            left -= max(1, draft.usage.completion_tokens)
            new = [one for one in draft.answer.sentences if one.text not in run.text]
            run.supported += [one.mark == "supported" for one in new]
            run.text = " ".join([run.text, *(one.text for one in new)]).strip()
            raw += draft.said
            if draft.ended or not new:
                break
        run.ms = _since(began)
        return run

    async def _draft(self, read: Sequence[Passage], raw: str, limit: int, *, sentences: int | None) -> Draft:
        """Continue a text, up to so many sentences."""
        texts = [(one.title, one.text) for one in read]
        message = WRITING.to_write_out(self._question, self._short, texts, ())
        messages = [{"role": "user", "content": message}]
        if raw:
            # The server continues the last message of the assistant.
            messages.append({"role": "assistant", "content": raw})
        body = {
            "messages": messages,
            "temperature": 0,
            "logprobs": True,
            "max_tokens": limit,
            "stream_options": {"continuous_usage_stats": True},
        }
        answer, said, tokens, usage, ended = LongAnswer(self._asked, read), "", list[tuple[str, float]](), Usage(), True
        async with aclosing(self._parts.reader.chat_stream(body)) as events:
            async for event in events:
                usage = Usage.so_far(event) or usage
                piece = "".join((one.get("delta") or {}).get("content") or "" for one in event.get("choices") or ())
                new = tokens_of(event)
                answer.add(piece, new)
                if sentences is not None and len(answer.sentences) >= sentences:
                    ended = False
                    break
                said += piece
                tokens += new if piece else []
                if answer.repeats:
                    break
        if ended:
            answer.finish()
        return Draft(answer, said, tokens, usage, ended)


def _total(usage: Usage) -> int:
    return usage.prompt_tokens + usage.completion_tokens


def _since(began: float) -> float:
    return (time.perf_counter() - began) * 1000.0


async def measure(parts: Parts, rows: Sequence[Mapping[str, Any]], minutes: float) -> list[dict[str, Any]]:
    """Both arms on each question, in random order, until the time is up."""
    measured, order, until = list[dict[str, Any]](), random.Random(7), time.monotonic() + minutes * 60
    with progress() as shown:
        task = shown.add_task("writing", total=len(rows))
        for row in rows:
            if time.monotonic() > until:
                break
            vector = await parts.embedder.embed_query(row["question"])
            passages = await parts.vectors.search(COLLECTION, vector, limit=K)
            short = await parts.reader.generate(Prompt(row["question"], tuple(passages)), max_tokens=48)
            writer, line = Writer(parts, row, passages, short.text), {"id": row["id"]}
            for arm in order.sample(("at_once", "flare"), 2):
                run: Run = await getattr(writer, arm)()
                right = judge(run.text, row["gold"])
                line[arm] = vars(run) | {"right": right, "sentences": len(run.supported)}
            measured.append(line)
            shown.advance(task)
    return measured


def summary(measured: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means of both arms, and FLARE against one go with intervals over questions."""
    arms = {arm: [line[arm] for line in measured if line[arm]["supported"]] for arm in ("at_once", "flare")}
    both = [line for line in measured if line["at_once"]["supported"] and line["flare"]["supported"]]
    share = {arm: [float(np.mean(line[arm]["supported"])) for line in both] for arm in arms}
    cost = {
        name: ratio([line["flare"][name] for line in both], [line["at_once"][name] for line in both])
        for name in ("tokens", "ms")
    }
    return {
        "questions": len(measured),
        "with_sentences": len(both),
        "supported": {arm: round(float(np.mean(share[arm])), 3) for arm in arms},
        "supported_difference": difference(share["flare"], share["at_once"]),
        "right": {arm: round(float(np.mean([line[arm]["right"] for line in both])), 3) for arm in arms},
        "right_difference": difference(*([float(line[arm]["right"]) for line in both] for arm in ("flare", "at_once"))),
        "sentences": {arm: round(float(np.mean([line[arm]["sentences"] for line in both])), 2) for arm in arms},
        "searches": round(float(np.mean([line["flare"]["searches"] for line in both])), 2),
        "mean_ms": {arm: round(float(np.mean([line[arm]["ms"] for line in both]))) for arm in arms},
        "tokens": cost["tokens"],
        "time": cost["ms"],
    }


def difference(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """The mean difference, with its interval over questions (bootstrap, 95 %)."""
    gaps = np.array(ours) - np.array(theirs)
    drawn = np.random.default_rng(11).integers(0, len(gaps), (2000, len(gaps)))
    low, high = np.quantile(gaps[drawn].mean(axis=1), (0.025, 0.975))
    return {"value": round(float(gaps.mean()), 3), "low": round(float(low), 3), "high": round(float(high), 3)}


async def run(count: int, minutes: float) -> list[dict[str, Any]]:
    """Fill a collection with the demo, and measure."""
    rows = [row for _, row in read_lines(DEMO / "unseen.jsonl")]
    with tempfile.TemporaryDirectory() as folder:
        settings = read_settings(data_dir=folder, reader_timeout_s=300)
        async with open_parts(settings) as parts:
            await ingest(
                [DEMO / "passages.jsonl"], collection=COLLECTION, embedder=parts.embedder, corpus=parts.vectors
            )
            return await measure(parts, random.Random(5).sample(rows, min(count, len(rows))), minutes)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=60.0)
    chosen = parser.parse_args()
    measured = asyncio.run(run(chosen.questions, chosen.minutes))
    figures = summary(measured)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps({"figures": figures, "runs": measured}, indent=1) + "\n")
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
