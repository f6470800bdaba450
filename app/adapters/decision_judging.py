"""Feedback judged against what the log knows, within a transaction that already has the right to write."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import BindParameter, Connection, Row, bindparam, func, insert, select

from app.adapters.decision_rows import storable, storable_tags
from app.adapters.decision_tables import decisions, feedback
from app.decision.feedback import Feedback, Judged, Source, verdict
from app.decision.policy import Action
from app.errors import BadRequest, UnknownDecision

# Built once: to put such a statement together takes longer than to run it.
_IDS: BindParameter[str] = bindparam("ids", expanding=True)
# Locked where the database knows row locks, so that two workers judge one answer one after the other.
_KNOWN = (
    select(decisions.c.id, decisions.c.key, decisions.c.action, decisions.c.answer, decisions.c.question)
    .where(decisions.c.id.in_(_IDS))
    .with_for_update()
)
_LAST = select(func.max(feedback.c.seq)).where(feedback.c.decision_id.in_(_IDS)).group_by(feedback.c.decision_id)
_IN_FORCE = select(feedback).where(feedback.c.seq.in_(_LAST))
_INSERT = insert(feedback)


def judge_all(connection: Connection, given: Sequence[tuple[float, Feedback]]) -> list[Judged | BadRequest]:
    """Judge each in turn, so that the second about one answer already meets the first."""
    about = {"ids": list({one.id for _, one in given})}
    known = {row.id: row for row in connection.execute(_KNOWN, about)}
    in_force: dict[str, dict[str, Any]] = {
        row.decision_id: dict(row._mapping)  # noqa: SLF001 its public name, whatever the underscore says
        for row in connection.execute(_IN_FORCE, about)
    }
    outcomes: list[Judged | BadRequest] = []
    fresh: list[dict[str, Any]] = []
    for at, one in given:
        earlier = in_force.get(one.id)
        try:
            row = _feedback_row(at, one, known.get(one.id), replaced=earlier is not None)
        except BadRequest as error:
            outcomes.append(error)
            continue
        repeated = earlier is not None and _same(row, earlier)
        if earlier is None or not repeated:
            fresh.append(row)
            in_force[one.id] = earlier = row
        outcomes.append(
            Judged(
                id=one.id,
                correct=earlier["correct"],
                source=Source(earlier["source"]),
                replaced=earlier["replaced"],
                action=Action(known[one.id].action),
                repeated=repeated,
            )
        )
    if fresh:
        connection.execute(_INSERT, fresh)
    return outcomes


def _feedback_row(
    at: float, one: Feedback, decision: Row[*tuple[Any, ...]] | None, *, replaced: bool
) -> dict[str, Any]:
    # What was answered to another key is not known to this one.
    if decision is None or decision.key != one.key:
        raise UnknownDecision(f"no answer with the id {one.id!r} is known: never given, not kept, or pruned since")
    return {
        "decision_id": one.id,
        "given_at": at,
        "key": one.key,
        "correct": verdict(one, Action(decision.action), decision.answer, texts_kept=decision.question is not None),
        "source": one.source.value,
        "reference_answers": [storable(reference) for reference in one.references],
        "comment": None if one.comment is None else storable(one.comment),
        "tags": storable_tags(one.tags),
        "replaced": replaced,
    }


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether the same was said; when it was said, and what was said before, makes no difference."""
    said = ("key", "correct", "source", "reference_answers", "comment", "tags")
    return all(one[name] == other[name] for name in said)
