"""What the decision log can teach: judged decisions with the verdict in force, and their shadow runs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, Row, Select, exists, func, select

from app.adapters.decision_reading import PAGE, reading
from app.adapters.decision_tables import decisions, feedback, shadows
from app.decision.feedback import Source


@dataclass(frozen=True, slots=True)
class Lesson:
    """One judged decision, as far as a refit can learn from it."""

    # The order of its verdict among all verdicts.
    seq: int
    id: str
    created_at: float
    # None where only hashes are kept.
    question: str | None
    retrieval: str
    filtered: bool
    k: int
    reason: str
    retrieval_calls: int
    calibrator: str | None
    propensities: Mapping[str, float] | None
    signals: Mapping[str, float]
    read_signals: Mapping[str, float]
    # Whether an answer below some confidence would have been withheld, and so never judged.
    might_abstain: bool
    # None where the answer was withheld: there was nothing to be right or wrong.
    correct: bool | None
    references: tuple[str, ...]
    # What every action answered, by k as text, and the system that was asked; None without a shadow run.
    outcomes: Mapping[str, Mapping[str, Any]] | None
    identity: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Sample:
    """The closed-book probabilities of some decisions: how many, their mean and their variance."""

    count: int
    mean: float
    variance: float


class Lessons:
    """Reads what was judged about one collection from a time on. Each page is a transaction of its own."""

    def __init__(self, engine: Engine, *, collection: str, since: float) -> None:
        self._engine = engine
        self._wanted = (decisions.c.collection == collection, decisions.c.created_at >= since)

    def span(self) -> tuple[int, int]:
        """The numbers of the first and the last verdict in the log, for a measure of progress; zeros without any."""
        with reading(), self._engine.connect() as connection:
            first, last = connection.execute(select(func.min(feedback.c.seq), func.max(feedback.c.seq))).one()
        return int(first or 0), int(last or 0)

    def read(self) -> Iterator[Lesson]:
        """Every decision with a verdict, in the order in which the verdicts came, a page in memory at a time."""
        reached, (_, last) = 0, self.span()
        while True:
            with reading(), self._engine.connect() as connection:
                page = connection.execute(self._page(reached, last)).all()
            for row in page:
                yield _lesson(row)
            if len(page) < PAGE:
                return
            reached = page[-1].seq

    def latest_identity(self) -> Mapping[str, Any] | None:
        """What the last shadow run was asked of; None where there was none."""
        query = (
            select(shadows.c.identity)
            .join(decisions, decisions.c.id == shadows.c.decision_id)
            .where(*self._wanted)
            .order_by(shadows.c.seq.desc())
            .limit(1)
        )
        with reading(), self._engine.connect() as connection:
            found: Mapping[str, Any] | None = connection.scalar(query)
        return found

    def shadowed(self, *, labelled: bool) -> Sample:
        """Questions with a shadow run, by whether reference answers ever came in for them."""
        p = decisions.c.p_closed_book
        label = exists().where(feedback.c.decision_id == decisions.c.id, feedback.c.source == Source.REFERENCES.value)
        query = (
            select(func.count(), func.avg(p), func.avg(p * p))
            .select_from(decisions.join(shadows, shadows.c.decision_id == decisions.c.id))
            .where(*self._wanted, label if labelled else ~label)
        )
        with reading(), self._engine.connect() as connection:
            count, mean, square = connection.execute(query).one()
        return Sample(int(count), float(mean or 0.0), max(0.0, float(square or 0.0) - float(mean or 0.0) ** 2))

    def _page(self, reached: int, last: int) -> Select[Any]:
        later = feedback.alias("later")
        replaced = exists().where(later.c.decision_id == feedback.c.decision_id, later.c.seq > feedback.c.seq)
        columns = [decisions.c[name] for name in _COLUMNS]
        return (
            select(feedback.c.seq, feedback.c.correct, feedback.c.reference_answers, *columns)
            .add_columns(shadows.c.outcomes, shadows.c.identity)
            .select_from(feedback)
            .join(decisions, decisions.c.id == feedback.c.decision_id)
            .outerjoin(shadows, shadows.c.decision_id == feedback.c.decision_id)
            .where(feedback.c.seq > reached, feedback.c.seq <= last, *self._wanted, ~replaced)
            .order_by(feedback.c.seq)
            .limit(PAGE)
        )


_COLUMNS = (
    "id",
    "created_at",
    "question",
    "retrieval",
    "abstain",
    "filtered",
    "k",
    "reason",
    "retrieval_calls",
    "calibrator",
    "propensities",
    "signals",
    "read_signals",
    "tau_abstain",
)


def _lesson(row: Row[Any]) -> Lesson:
    return Lesson(
        seq=row.seq,
        id=row.id,
        created_at=row.created_at,
        question=row.question,
        retrieval=row.retrieval,
        filtered=row.filtered,
        k=row.k,
        reason=row.reason,
        retrieval_calls=row.retrieval_calls,
        calibrator=row.calibrator,
        propensities=row.propensities,
        signals=row.signals,
        read_signals=row.read_signals,
        might_abstain=row.abstain and row.tau_abstain is not None,
        correct=row.correct,
        references=tuple(row.reference_answers),
        outcomes=row.outcomes,
        identity=row.identity,
    )
