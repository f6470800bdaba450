"""The outcome table in memory: one row per question, one numpy column per number.

Anything wrong with a file raises a `DataError` that names the line and how to fix it.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.core.artifact import Identity
from app.core.corpus_stats import NO_STATS, CorpusStats
from app.core.labels import normalise
from app.errors import DataError

Floats = NDArray[np.float64]
Labels = NDArray[np.bool_]
Vectors = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Columns of n rows. A missing number is NaN; a table loaded without texts has no questions and answers."""

    # None: the table can be evaluated, but an artifact fitted on it is never served.
    identity: Identity | None
    ids: list[str]
    groups: list[str]
    questions: list[str]
    gold: list[list[str]]
    tags: list[dict[str, Any]]
    # The numbers of passages that a policy chooses among, ascending from 0. The columns may have further ones.
    ks: tuple[int, ...]
    answers: dict[int, list[str]]
    correct: dict[int, Labels]
    signals: dict[int, dict[str, Floats]]
    prompt_tokens: dict[int, Floats]
    completion_tokens: dict[int, Floats]
    ms: dict[int, Floats]
    # By name, as heads read it: `k0.margin`, `search.cosine`. Every table has that of its signals.
    evidence: dict[str, Floats]
    # Questions that the corpus cannot answer, of which only a refusal is right; and their kinds, "" if not given.
    out_of_corpus: Labels
    kinds: list[str]
    # Answers that nobody has judged yet, by k; empty if all are. Their `correct` is False.
    unlabelled: dict[int, Labels] = field(default_factory=dict)
    # Rows without a label whose answers are all equal after normalisation: every policy is as right as every other.
    alike: Labels = field(default_factory=lambda: np.zeros(0, np.bool_))
    # Whether a request counts once in every average, and not a group.
    per_request: bool = False
    # Embeddings of the questions, one row each, of which a row without one is NaN; None if no row has one.
    vectors: Vectors | None = None
    # Word counts of the corpus; they have no centroids.
    stats: CorpusStats = NO_STATS
    # When the first and the last question was asked, as ISO 8601 in UTC; None if no row has a time.
    first: str | None = None
    last: str | None = None
    # What is missing from the table, for the person who runs a command on it.
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        """The number of questions."""
        return len(self.ids)

    @property
    def graded_ks(self) -> tuple[int, int, int]:
        """What the paper's graded policy chooses among: none, few or many passages."""
        return self.ks[0], self.ks[1], self.ks[-1]

    @property
    def lacking(self) -> Labels:
        """Rows that lack a label."""
        found: Labels = np.sum([np.zeros(len(self)), *self.unlabelled.values()], axis=0) > 0
        return found

    @property
    def labels(self) -> int:
        """The number of rows that have all their labels."""
        return int((~self.lacking).sum())

    def require_labels(self, what: str, *, unless_alike: bool = False) -> None:
        """Raise a DataError if a row lacks a label; with `unless_alike` only if its answers differ."""
        lacking = self.lacking & ~self.alike if unless_alike and self.unlabelled else self.lacking
        if lacking.any():
            raise DataError(
                f"{int(lacking.sum())} rows of {what} lack a label: label the answers that `fetchwise collect "
                "--label-later FILE` lists, and add --labels FILE"
            )

    def take(self, index: NDArray[np.intp]) -> "Outcomes":
        """The rows at `index`, in its order."""
        rows = index.tolist()

        def pick(column: list[Any]) -> list[Any]:
            return [column[row] for row in rows] if column else []

        def pick_each(columns: dict[Any, Any]) -> dict[Any, Any]:
            return {name: column[index] for name, column in columns.items()}

        return replace(
            self,
            ids=pick(self.ids),
            groups=pick(self.groups),
            questions=pick(self.questions),
            gold=pick(self.gold),
            tags=pick(self.tags),
            answers={k: pick(texts) for k, texts in self.answers.items()},
            correct=pick_each(self.correct),
            signals={k: pick_each(named) for k, named in self.signals.items()},
            prompt_tokens=pick_each(self.prompt_tokens),
            completion_tokens=pick_each(self.completion_tokens),
            ms=pick_each(self.ms),
            evidence=pick_each(self.evidence),
            out_of_corpus=self.out_of_corpus[index],
            kinds=pick(self.kinds),
            unlabelled=pick_each(self.unlabelled),
            alike=self.alike[index] if self.unlabelled else self.alike,
            vectors=None if self.vectors is None else self.vectors[index],
        )


def normalise_group(question: str) -> str:
    """The group of a question without one: its normalised words, so that two spellings share a group."""
    return normalise(question) or question
