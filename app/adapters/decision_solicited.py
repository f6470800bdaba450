"""The judgements in the decision log that were asked for, in order, for the drift test."""

from sqlalchemy import Engine, select

from app.adapters.decision_reading import reading
from app.adapters.decision_tables import decisions, feedback
from app.decision.drift import Solicited
from app.decision.policy import Action


def solicited(engine: Engine, version: str, *, after: int, limit: int) -> list[Solicited]:
    """Judgements of answers that were drawn for feedback under this calibrator, after a position in the log.

    On PostgreSQL two workers may store judgements in another order than they number them, and one of them may be
    passed over here. Which one has nothing to do with what it says, so the test stays valid.
    """
    wanted = (
        select(feedback.c.seq, decisions.c.confidence, feedback.c.correct, feedback.c.key)
        .join(decisions, decisions.c.id == feedback.c.decision_id)
        .where(
            feedback.c.seq > after,
            # The first word on an answer counts: what the test learned from it cannot be unlearned.
            feedback.c.replaced.is_(False),
            decisions.c.solicited.is_(True),
            decisions.c.calibrator == version,
            decisions.c.confidence.is_not(None),
            feedback.c.correct.is_not(None),
            decisions.c.action != Action.ABSTAIN.value,
        )
        .order_by(feedback.c.seq)
        .limit(limit)
    )
    with reading(), engine.connect() as connection:
        rows = connection.execute(wanted).all()
    return [Solicited(row.seq, row.confidence, row.correct, row.key, version) for row in rows]
