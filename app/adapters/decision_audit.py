"""Decisions with the verdict in force, newest first, for an audit by tag."""

from sqlalchemy import Engine, func, select

from app.adapters.decision_reading import reading
from app.adapters.decision_tables import decisions, feedback
from app.decision.audit import AuditRow
from app.decision.policy import Action


def audit_rows(engine: Engine, *, since: float, limit: int) -> list[AuditRow]:
    """At most `limit` decisions from that time on."""
    last = select(func.max(feedback.c.seq)).group_by(feedback.c.decision_id)
    verdicts = select(feedback.c.decision_id, feedback.c.correct).where(feedback.c.seq.in_(last)).subquery()
    wanted = (
        select(decisions.c.tags, decisions.c.action, decisions.c.k, verdicts.c.correct, decisions.c.solicited)
        .outerjoin(verdicts, verdicts.c.decision_id == decisions.c.id)
        .where(decisions.c.created_at >= since)
        .order_by(decisions.c.seq.desc())
        .limit(limit)
    )
    with reading(), engine.connect() as connection:
        return [
            AuditRow(row.tags, Action(row.action), row.k, correct=row.correct, solicited=row.solicited)
            for row in connection.execute(wanted)
        ]
