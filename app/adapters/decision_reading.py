"""The decision log read back: page by page for an export, and counted for an overview."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, Row, Subquery, Table, func, select, text
from sqlalchemy.exc import SQLAlchemyError

from app.adapters.decision_tables import decisions, feedback
from app.errors import LogUnavailable

PAGE = 1_000


@dataclass(frozen=True, slots=True)
class ActionStats:
    """What became of the questions that ended in one action."""

    action: str
    decisions: int
    judged: int
    correct: int


@dataclass(frozen=True, slots=True)
class Stats:
    """An overview of the log; times are Unix seconds."""

    schema_version: int
    first_at: float | None
    last_at: float | None
    # Every verdict that ever came in, the replaced ones too.
    feedback: int
    actions: tuple[ActionStats, ...]

    @property
    def decisions(self) -> int:
        """How many there are in all."""
        return sum(one.decisions for one in self.actions)


def count(engine: Engine, since: float) -> int:
    """How many decisions there are from that time on."""
    with reading(), engine.connect() as connection:
        return int(connection.scalar(select(func.count()).where(decisions.c.created_at >= since)) or 0)


def pages(engine: Engine, since: float, *, size: int = PAGE) -> Iterator[list[dict[str, Any]]]:
    """Every decision from that time on, in order of arrival; `feedback` is in force, `feedback_history` is all of it.

    Each page is a transaction of its own: a long one would keep the database from tidying up behind the writers.
    """
    reached = 0
    while True:
        after = select(decisions).where(decisions.c.seq > reached, decisions.c.created_at >= since)
        with reading(), engine.connect() as connection:
            page = _dicts(decisions, connection.execute(after.order_by(decisions.c.seq).limit(size)))
            if not page:
                return
            about = feedback.c.decision_id.in_([row["id"] for row in page])
            given = _dicts(feedback, connection.execute(select(feedback).where(about).order_by(feedback.c.seq)))
        reached = page[-1]["seq"]
        yield _joined(page, given)


def stats(engine: Engine) -> Stats:
    """Count everything."""
    verdicts = in_force()
    by_action = (
        select(
            decisions.c.action,
            func.count(),
            func.count(verdicts.c.correct),
            func.count().filter(verdicts.c.correct),
        )
        .outerjoin(verdicts, verdicts.c.decision_id == decisions.c.id)
        .group_by(decisions.c.action)
        .order_by(decisions.c.action)
    )
    with reading(), engine.connect() as connection:
        first, last_at = connection.execute(
            select(func.min(decisions.c.created_at), func.max(decisions.c.created_at))
        ).one()
        return Stats(
            schema_version=int(connection.scalar(text("SELECT version FROM schema_version")) or 0),
            first_at=first,
            last_at=last_at,
            feedback=int(connection.scalar(select(func.count()).select_from(feedback)) or 0),
            actions=tuple(ActionStats(*row) for row in connection.execute(by_action)),
        )


def in_force() -> Subquery:
    """Of each judged decision the last verdict: `decision_id` and `correct`."""
    last = select(func.max(feedback.c.seq)).group_by(feedback.c.decision_id)
    return select(feedback.c.decision_id, feedback.c.correct).where(feedback.c.seq.in_(last)).subquery()


def _dicts(table: Table, rows: Iterable[Row[Any]]) -> list[dict[str, Any]]:
    # SQLAlchemy's own names are more than strings, which not every serialiser takes.
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
def reading() -> Iterator[None]:
    """Translate what goes wrong while reading."""
    try:
        yield
    except SQLAlchemyError as error:
        raise LogUnavailable(f"the decision log cannot be read: {getattr(error, 'orig', error)}") from error
