"""Decisions with the verdict in force, newest first, for an audit by tag."""

from sqlalchemy import Engine, select

from app.adapters.decision_reading import in_force, reading
from app.adapters.decision_tables import decisions
from app.decision.audit import AuditRow
from app.decision.policy import Action


def audit_rows(engine: Engine, *, since: float, limit: int) -> list[AuditRow]:
    """At most `limit` decisions from that time on."""
    verdicts = in_force()
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
