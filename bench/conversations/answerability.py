"""Which evidence shows that the documents do not answer a message: `make bench-conversations`.

Last turns of real conversations, labelled by people; the passages of all of them together are the corpus. The scope
test is fitted on half of the answerable ones, as a refit does, and counted on the others.
"""

import argparse
import asyncio
import gzip
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from zlib import crc32

import numpy as np
from sklearn.metrics import roc_auc_score

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from app.core import evidence  # noqa: E402
from app.core.available import Answer, Passage, Usage  # noqa: E402
from app.core.corpus_stats import CorpusStats  # noqa: E402
from app.core.evidence import NEARNESS, Asked, Found  # noqa: E402
from app.core.signals import extract  # noqa: E402
from app.core.standalone import stands_alone  # noqa: E402
from app.offline.refit.scope import alarms, exact_interval, fit_scope, nearness_of  # noqa: E402
from app.ports import Embedder, Prompt, Reader  # noqa: E402
from app.settings import read_settings  # noqa: E402
from app.upstream.embedders import open_embedder  # noqa: E402
from app.upstream.parts import resilience_of  # noqa: E402
from app.upstream.readers import open_reader  # noqa: E402
from bench.conversations.fit import RESAMPLES  # noqa: E402
from bench.ladder.tables import shared  # noqa: E402

LABELS = ("ANSWERABLE", "PARTIAL", "UNANSWERABLE", "UNDERSPECIFIED")
ALPHAS = (0.05, 0.15, 0.3)
COMPARED = ("ANSWERABLE", "UNANSWERABLE")
TOP = 5
MAX_TOKENS = 24


class Turn:
    """The last turn of a conversation, with what was found for it."""

    def __init__(self, row: Mapping[str, object], texts: Sequence[str]) -> None:
        self.id = str(row["id"])
        self.label = str(row["answerability"])
        *earlier, message = texts
        # What a rewrite would add is approximated by the user's message before it.
        self.text = message if stands_alone(message, earlier) else f"{message}\n{earlier[-1]}"
        self.in_train = self.label == "ANSWERABLE" and crc32(self.id.encode()) % 2 == 0
        self.vector: Sequence[float] = ()
        self.found: Found | None = None
        self.evidence: dict[str, float] = {}


def load() -> tuple[list[Turn], list[Passage]]:
    """The turns, and the passages of all of them."""
    with gzip.open(shared() / "data" / "conversations" / "answerability.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    turns = [Turn(row, [turn["text"] for turn in row["turns"] if turn["role"] == "user"]) for row in rows]
    passages = {one["id"]: Passage(one["id"], one["title"], one["text"]) for row in rows for one in row["passages"]}
    return turns, list(passages.values())


async def search(turns: Sequence[Turn], passages: Sequence[Passage], embedder: Embedder) -> None:
    """Add the search and its evidence to every turn."""
    stats = CorpusStats.of((one.title, one.text) for one in passages)
    vectors = np.array(await embedder.embed_passages([f"{one.title}\n{one.text}".strip() for one in passages]))
    for turn in turns:
        turn.vector = await embedder.embed_query(turn.text)
        scores = vectors @ np.array(turn.vector)
        best = np.argsort(-scores)[:TOP].tolist()
        found = tuple(Passage(passages[i].id, passages[i].title, passages[i].text, float(scores[i])) for i in best)
        turn.found = Found(Asked(turn.text, stats), found)
        turn.evidence = evidence.of_question(turn.found.asked, None) | evidence.of_search(turn.found, {})


async def read(turns: Sequence[Turn], reader: Reader) -> None:
    """Add the evidence of the closed-book probe and of an answer from one passage."""
    for turn in turns:
        assert turn.found is not None
        answers: dict[int, Answer] = {}
        for k in (0, 1):
            said = await reader.generate(Prompt(turn.text, turn.found.passages[:k]), max_tokens=MAX_TOKENS)
            usage = Usage(said.prompt_tokens, said.completion_tokens)
            answer = Answer(k, said.text, extract(said.tokens), usage, passages_read=said.passages_read)
            turn.evidence |= evidence.of_answer(turn.found.asked, turn.found, answer, answers)
            answers[k] = answer


def separation(turns: Sequence[Turn]) -> dict[str, tuple[float, float, float, int]]:
    """For each evidence, the chance that it is higher where the documents answer, with its interval over turns."""
    compared = [turn for turn in turns if turn.label in COMPARED and not turn.in_train]
    result = {}
    for name in sorted({name for turn in compared for name in turn.evidence if not name.startswith("scope.script")}):
        rows = [turn for turn in compared if name in turn.evidence]
        labels = np.array([turn.label == "ANSWERABLE" for turn in rows])
        values = np.array([turn.evidence[name] for turn in rows])
        if len(rows) < 20 or labels.all() or not labels.any():
            continue
        sides = np.flatnonzero(labels), np.flatnonzero(~labels)
        generator = np.random.default_rng(3)
        drawn = []
        for _ in range(RESAMPLES // 4):
            at = np.concatenate([generator.choice(side, len(side)) for side in sides])
            drawn.append(roc_auc_score(labels[at], values[at]))
        low, high = np.quantile(drawn, (0.025, 0.975))
        shown = (roc_auc_score(labels, values), low, high)
        result[name] = (*(round(float(value), 3) for value in shown), len(rows))
    return dict(sorted(result.items(), key=lambda item: -item[1][0]))


def scope(turns: Sequence[Turn]) -> dict[str, object]:
    """How often the scope test alarms, by label: there chat mode withholds, or says that the documents lack it."""
    fitted = [turn for turn in turns if turn.in_train]
    ids = [turn.id for turn in fitted]
    vectors = np.array([turn.vector for turn in fitted], np.float32)
    result: dict[str, object] = {"fitted on": len(fitted)}
    for alpha in ALPHAS:
        test = fit_scope(ids, _columns(fitted), vectors, ids, alpha=alpha)
        for turn in turns:
            turn.evidence[NEARNESS] = float(nearness_of(np.array([turn.vector], np.float32), test.centroids)[0])
        rates = {}
        for label in LABELS:
            rows = [turn for turn in turns if turn.label == label and not turn.in_train]
            columns = _columns(rows)
            out = alarms(test.scope, columns, len(rows))
            by = {name: int((columns[name] < floor).sum()) for name, floor in test.scope.floors.items()}
            share = exact_interval(int(out.sum()), len(rows))
            shown = [round(value, 3) for value in (share.value, share.low, share.high) if value is not None]
            rates[label] = {"alarms": shown, "n": len(rows), "by": by}
        result[f"alpha {alpha}"] = rates
    return result


def _columns(turns: Sequence[Turn]) -> dict[str, np.ndarray]:
    names = {name for turn in turns for name in turn.evidence}
    return {name: np.array([turn.evidence.get(name, np.nan) for turn in turns]) for name in sorted(names)}


async def main() -> None:
    """Search, read if asked for, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--read", type=int, default=0, help="ask the embedded reader this many turns of each label")
    wanted = parser.parse_args().read
    turns, passages = load()
    settings = read_settings()
    async with open_embedder(settings.embedder, resilience_of(settings)) as embedder:
        await search(turns, passages, embedder)
    print(json.dumps({"passages": len(passages), "turns": len(turns), "scope": scope(turns)}, indent=1))
    if wanted:
        new = sorted((one for one in turns if not one.in_train), key=lambda one: crc32(one.id.encode()))
        chosen = [one for label in COMPARED for one in [turn for turn in new if turn.label == label][:wanted]]
        with tempfile.TemporaryDirectory() as folder:
            opening = open_reader(settings.reader, resilience_of(settings), data_dir=Path(folder), at_once=1)
            async with opening as reader:
                await read(chosen, reader)
        print(json.dumps({"read": separation(chosen)}, indent=1))
    print(json.dumps({"evidence": separation(turns)}, indent=1))


if __name__ == "__main__":
    asyncio.run(main())
