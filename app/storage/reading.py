"""Reads the decision log: for an export, an overview, an audit, a replay, the drift test, and a refit.

Long results are read page by page, each page in a transaction of its own: a long transaction would keep the database
from cleaning up behind the writers.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from itertools import takewhile
from typing import Any

from sqlalchemy import Connection, FromClause, Label, Row, Select, Table, exists, func, select
from sqlalchemy.exc import SQLAlchemyError

from app.core.feedback import Asked, AuditRow, Source
from app.core.labels import judge
from app.core.policy import ABSTAIN
from app.core.replay import Logged
from app.errors import LogUnavailable
from app.storage.database import Database
from app.storage.tables import ASKED, VERSION, decisions, feedback, full_runs

PAGE = 1_000
# Decisions that are counted by action.
NEWEST = 20_000


@dataclass(frozen=True, slots=True)
class ActionStats:
    """How many decisions ended in one action, and how many of them were judged right."""

    action: str
    decisions: int
    judged: int
    correct: int


@dataclass(frozen=True, slots=True)
class Stats:
    """An overview of the log; times are Unix seconds. `actions` are those of the newest decisions."""

    schema_version: str
    decisions: int
    first_at: float | None
    last_at: float | None
    # All verdicts, including replaced ones.
    feedback: int
    actions: tuple[ActionStats, ...]


@dataclass(frozen=True, slots=True)
class LoggedDecision:
    """One judged decision, with what a refit reads of it."""

    # The order of its verdict among all verdicts.
    seq: int
    id: str
    created_at: float
    # None if only hashes are kept.
    question: str | None
    mode: str
    retrieval: str
    filtered: bool
    k: int
    reason: str
    calibrator: str | None
    # Whether a verdict was asked for: drawn for feedback, or for a shadow run.
    solicited: bool
    shadowed: bool
    propensities: Mapping[str, float] | None
    # What was known in the end, by name.
    evidence: Mapping[str, float]
    # None if the answer was withheld.
    correct: bool | None
    references: Sequence[str]
    # The answers of the shadow run, by k as text, and the system that gave them; None without a run.
    outcomes: Mapping[str, Mapping[str, Any]] | None
    identity: Mapping[str, Any] | None
    # The evidence of the search and all answers of that run.
    full_evidence: Mapping[str, float] | None


@dataclass(frozen=True, slots=True)
class Sample:
    """The closed-book probabilities of some decisions: how many, their mean and their variance."""

    count: int
    mean: float
    variance: float


# The columns of these fields of LoggedDecision; the others are columns of `decisions` with the same name.
_ELSEWHERE = {
    "seq": feedback.c.seq,
    "correct": feedback.c.correct,
    "references": feedback.c.reference_answers,
    "outcomes": full_runs.c.outcomes,
    "identity": full_runs.c.identity,
    "full_evidence": full_runs.c.evidence,
}
_LOGGED_DECISION = [
    _ELSEWHERE[one.name] if one.name in _ELSEWHERE else decisions.c[one.name] for one in fields(LoggedDecision)
]


class LoggedDecisions:
    """Reads the judged decisions of one collection and population from a time on: turns of chats, or all others."""

    def __init__(self, database: Database, *, collection: str, since: float, chat: bool = False) -> None:
        self._database = database
        mode = decisions.c.mode == "chat" if chat else decisions.c.mode != "chat"
        self._wanted = (decisions.c.collection == collection, decisions.c.created_at >= since, mode)

    def span(self) -> tuple[int, int]:
        """The numbers of the first and the last verdict in the log, to show progress; zeros without any."""
        with _reading(self._database) as connection:
            first, last = connection.execute(select(func.min(feedback.c.seq), func.max(feedback.c.seq))).one()
        return int(first or 0), int(last or 0)

    def read(self) -> Iterator[LoggedDecision]:
        """Every decision with a verdict, in the order in which the verdicts came, a page in memory at a time."""
        reached, (_, last) = 0, self.span()
        while True:
            with _reading(self._database) as connection:
                page = [LoggedDecision(*row) for row in connection.execute(self._page(reached, last))]
            yield from page
            if len(page) < PAGE:
                return
            reached = page[-1].seq

    def latest_identity(self) -> Mapping[str, Any] | None:
        """The system of the last shadow run; None if there was none."""
        query = (
            select(full_runs.c.identity)
            .join(decisions, decisions.c.id == full_runs.c.decision_id)
            .where(*self._wanted)
            .order_by(full_runs.c.seq.desc())
            .limit(1)
        )
        with _reading(self._database) as connection:
            found: Mapping[str, Any] | None = connection.scalar(query)
        return found

    def shadowed(self, *, labelled: bool) -> Sample:
        """Questions with a shadow run, with or without reference answers."""
        p = decisions.c.p_closed_book
        label = exists().where(feedback.c.decision_id == decisions.c.id, feedback.c.source == Source.REFERENCES.value)
        query = (
            select(func.count(), func.avg(p), func.avg(p * p))
            .select_from(decisions.join(full_runs, full_runs.c.decision_id == decisions.c.id))
            .where(*self._wanted, label if labelled else ~label)
        )
        with _reading(self._database) as connection:
            count, mean, square = connection.execute(query).one()
        return Sample(int(count), float(mean or 0.0), max(0.0, float(square or 0.0) - float(mean or 0.0) ** 2))

    def _page(self, reached: int, last: int) -> Select[Any]:
        later = feedback.alias("later")
        replaced = exists().where(later.c.decision_id == feedback.c.decision_id, later.c.seq > feedback.c.seq)
        return (
            select(*_LOGGED_DECISION)
            .select_from(feedback)
            .join(decisions, decisions.c.id == feedback.c.decision_id)
            .outerjoin(full_runs, full_runs.c.decision_id == feedback.c.decision_id)
            .where(feedback.c.seq > reached, feedback.c.seq <= last, *self._wanted, ~replaced)
            .order_by(feedback.c.seq)
            .limit(PAGE)
        )


def count(database: Database, since: float) -> int:
    """How many decisions there are from that time on."""
    with _reading(database) as connection:
        return int(connection.scalar(select(func.count()).where(decisions.c.created_at >= since)) or 0)


def pages(database: Database, since: float, *, size: int = PAGE) -> Iterator[list[dict[str, Any]]]:
    """Every decision from that time on, in order of arrival, with its last `feedback` and `feedback_history`."""
    reached = 0
    while True:
        after = select(decisions).where(decisions.c.seq > reached, decisions.c.created_at >= since)
        with _reading(database) as connection:
            page = _dicts(decisions, connection.execute(after.order_by(decisions.c.seq).limit(size)))
            if not page:
                return
            about = feedback.c.decision_id.in_([row["id"] for row in page])
            given = _dicts(feedback, connection.execute(select(feedback).where(about).order_by(feedback.c.seq)))
        reached = page[-1]["seq"]
        yield _joined(page, given)


def logged(database: Database, *, last: int, identifier: str | None = None) -> list[Logged]:
    """The last decisions, newest first; or the one with this id, if it is there."""
    wanted = select(*(decisions.c[one.name] for one in fields(Logged))).order_by(decisions.c.seq.desc()).limit(last)
    if identifier is not None:
        wanted = wanted.where(decisions.c.id == identifier)
    with _reading(database) as connection:
        return [Logged(*row) for row in connection.execute(wanted)]


def size(connection: Connection, most: int = 0) -> int:
    """About how many decisions there are, by position; counted where that is more than `most`, unless 0.

    Positions may be missing, and many: PostgreSQL does not give back the numbers of a batch that failed.
    """
    # One statement, so that both are of one moment; two subqueries, since each then reads one end of the index.
    ends = [select(end(decisions.c.seq)).scalar_subquery() for end in (func.min, func.max)]
    first, last = connection.execute(select(*ends)).one()
    about = 0 if last is None else int(last - first + 1)
    if not most or about <= most:
        return about
    # In the order of a small index, so that the wide rows are not read.
    each = select(decisions.c.created_at).order_by(decisions.c.created_at).subquery()
    return int(connection.scalar(select(func.count()).select_from(each)) or 0)


def stats(database: Database) -> Stats:
    """Count the newest decisions, with their last verdicts; the numbers of all are exact if there are no more."""
    newest = select(decisions.c.id, decisions.c.action).order_by(decisions.c.seq.desc()).limit(NEWEST).subquery()
    judged = select(newest.c.action, _last_verdict(newest)).subquery()
    by_action = (
        select(
            judged.c.action,
            func.count(),
            func.count(judged.c.correct),
            func.count().filter(judged.c.correct),
        )
        .group_by(judged.c.action)
        .order_by(judged.c.action)
    )
    with _reading(database) as connection:
        first, last = (connection.scalar(select(end(decisions.c.created_at))) for end in (func.min, func.max))
        given = connection.scalar(select(func.count()).select_from(feedback)) or 0
        actions = tuple(ActionStats(*row) for row in connection.execute(by_action))
        counted = sum(one.decisions for one in actions)
        decided = counted if counted < NEWEST else size(connection)
    return Stats(VERSION, decided, first, last, given, actions)


def audit_rows(database: Database, *, since: float, limit: int) -> list[AuditRow]:
    """At most `limit` decisions from that time on, newest first, each with its last verdict."""
    # By time, not by position: where few decisions are that new, no others are read.
    newest = (
        select(*decisions.c["id", "tags", "action", "k", "solicited"])
        .where(decisions.c.created_at >= since)
        .order_by(decisions.c.created_at.desc())
        .limit(limit)
        .subquery()
    )
    wanted = select(*newest.c["tags", "action", "k", "solicited"], _last_verdict(newest))
    with _reading(database) as connection:
        return [
            AuditRow(row.tags, row.action, row.k, correct=row.correct, solicited=row.solicited)
            for row in connection.execute(wanted)
        ]


def asked(database: Database, version: str, *, after: int, until: float, wait: float, limit: int) -> list[Asked]:
    """Answers under this calibrator whose verdict was asked for, after a position in the log and up to a time.

    Of each the first verdict, if it came within `wait` seconds: a sequential test cannot take a value back.
    """
    first, in_time = feedback.c.replaced.is_(False), feedback.c.created_at <= decisions.c.created_at + wait
    wanted = (
        select(
            *decisions.c["seq", "created_at", "k", "confidence", "key", "certified"],
            *feedback.c["correct", "source", "reference_answers"],
            full_runs.c.outcomes,
        )
        .outerjoin(feedback, (feedback.c.decision_id == decisions.c.id) & first & in_time)
        .outerjoin(full_runs, full_runs.c.decision_id == decisions.c.id)
        .where(decisions.c.calibrator == version, decisions.c.seq > after, ASKED)
        .where(decisions.c.confidence.is_not(None), decisions.c.action != ABSTAIN)
        .where(decisions.c.explored.is_(False), decisions.c.filtered.is_(False))
        # A verdict on a written text is not about the short answer, whose confidence is tested.
        .where(decisions.c.mode == "answer")
        .order_by(decisions.c.seq)
        .limit(limit)
    )
    with _reading(database) as connection:
        rows = connection.execute(wanted).all()
    # Two gateways whose clocks differ may log in another order: nothing is passed over.
    return [_asked(row) for row in takewhile(lambda row: row.created_at <= until, rows)]


def _asked(row: Row[*tuple[Any, ...]]) -> Asked:
    by_references = row.source == Source.REFERENCES.value
    cells = (row.outcomes or {}) if by_references and row.certified else {}
    answers = {int(k): cell["answer"] for k, cell in cells.items() if cell["answer"] is not None}
    shadow = {k: judge(answer, row.reference_answers) for k, answer in answers.items()}
    return Asked(row.seq, row.k, row.confidence, row.correct, row.key, by_references=by_references, shadow=shadow)


def _last_verdict(among: FromClause) -> Label[bool | None]:
    """The last verdict on each of these decisions: a look into an index for each, however much feedback there is."""
    given = feedback.c.decision_id == among.c.id
    return select(feedback.c.correct).where(given).order_by(feedback.c.seq.desc()).limit(1).label("correct")


def _dicts(table: Table, rows: Iterable[Row[Any]]) -> list[dict[str, Any]]:
    # SQLAlchemy's names are a subclass of str, which not every serialiser accepts.
    names = [str(column.name) for column in table.columns]
    return [dict(zip(names, row, strict=True)) for row in rows]


def _joined(page: list[dict[str, Any]], given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    history: dict[str, list[dict[str, Any]]] = {}
    for one in given:
        del one["seq"]
        history.setdefault(one.pop("decision_id"), []).append(one)
    for row in page:
        del row["seq"]
        row["feedback_history"] = history.get(row["id"], [])
        row["feedback"] = row["feedback_history"][-1] if row["feedback_history"] else None
    return page


@contextmanager
def _reading(database: Database) -> Iterator[Connection]:
    try:
        with database.reading() as connection:
            yield connection
    except SQLAlchemyError as error:
        raise LogUnavailable(f"the decision log cannot be read: {getattr(error, 'orig', error)}") from error
