"""How the decision log's tables came to be what they are: one step a version, never changed once released.

A new database takes every step; an older one those that it lacks. To change a table: append a step here, and make
`decision_tables` say the same.
"""

from sqlalchemy import Connection, inspect, text

from app.errors import ConfigurationError

_SEQ = {
    "sqlite": "INTEGER PRIMARY KEY AUTOINCREMENT",
    "postgresql": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
}

_DECISIONS = (
    """
    CREATE TABLE decisions (
        seq {seq},
        id TEXT NOT NULL UNIQUE,
        created_at DOUBLE PRECISION NOT NULL,
        key TEXT,
        question TEXT,
        question_sha256 TEXT NOT NULL,
        answer TEXT,
        answer_sha256 TEXT,
        collection TEXT NOT NULL,
        policy TEXT NOT NULL,
        retrieval TEXT NOT NULL,
        abstain BOOLEAN NOT NULL,
        filtered BOOLEAN NOT NULL,
        action TEXT NOT NULL,
        k INTEGER NOT NULL,
        reason TEXT NOT NULL,
        confidence DOUBLE PRECISION,
        p_closed_book DOUBLE PRECISION,
        signals JSON NOT NULL,
        read_signals JSON NOT NULL,
        tau0 DOUBLE PRECISION,
        tau1 DOUBLE PRECISION,
        tau_abstain DOUBLE PRECISION,
        calibrator TEXT,
        certified BOOLEAN NOT NULL,
        schedule TEXT NOT NULL,
        propensities JSON,
        explored BOOLEAN NOT NULL,
        solicited BOOLEAN NOT NULL,
        shadowed BOOLEAN NOT NULL,
        passages JSON NOT NULL,
        retrieval_calls INTEGER NOT NULL,
        failed_part TEXT,
        failure_kind TEXT,
        probe_prompt_tokens BIGINT,
        probe_completion_tokens BIGINT,
        read_prompt_tokens BIGINT,
        read_completion_tokens BIGINT,
        probe_ms DOUBLE PRECISION,
        embed_ms DOUBLE PRECISION,
        search_ms DOUBLE PRECISION,
        read_ms DOUBLE PRECISION,
        total_ms DOUBLE PRECISION NOT NULL,
        tags JSON NOT NULL
    )
    """,
    "CREATE INDEX ix_decisions_created_at ON decisions (created_at)",
)

_FEEDBACK = (
    """
    CREATE TABLE feedback (
        seq {seq},
        decision_id TEXT NOT NULL,
        given_at DOUBLE PRECISION NOT NULL,
        key TEXT,
        correct BOOLEAN,
        source TEXT NOT NULL,
        reference_answers JSON NOT NULL,
        comment TEXT,
        tags JSON NOT NULL,
        replaced BOOLEAN NOT NULL,
        FOREIGN KEY (decision_id) REFERENCES decisions (id) ON DELETE CASCADE
    )
    """,
    "CREATE INDEX ix_feedback_decision_id ON feedback (decision_id)",
)

_SHADOWS = (
    """
    CREATE TABLE shadows (
        seq {seq},
        decision_id TEXT NOT NULL UNIQUE,
        at DOUBLE PRECISION NOT NULL,
        identity JSON NOT NULL,
        outcomes JSON NOT NULL,
        FOREIGN KEY (decision_id) REFERENCES decisions (id) ON DELETE CASCADE
    )
    """,
)

_WASTED = (
    "ALTER TABLE decisions ADD COLUMN wasted_prompt_tokens BIGINT",
    "ALTER TABLE decisions ADD COLUMN wasted_completion_tokens BIGINT",
)

# The step at place n leads from version n to n + 1.
STEPS: tuple[tuple[str, ...], ...] = (_DECISIONS, _FEEDBACK, _SHADOWS, _WASTED)


def migrate(connection: Connection, steps: tuple[tuple[str, ...], ...] = STEPS) -> int:
    """Take the steps that a database lacks, within the caller's transaction; returns how many it took."""
    connection.execute(text("CREATE TABLE IF NOT EXISTS schema_version (version INTEGER NOT NULL)"))
    stands_at = connection.scalar(text("SELECT version FROM schema_version"))
    if stands_at is None:
        if inspect(connection).has_table("decisions"):
            raise ConfigurationError("it has a table `decisions` that is not Fetchwise's: name another database")
        connection.execute(text("INSERT INTO schema_version (version) VALUES (0)"))
        stands_at = 0
    if stands_at > len(steps):
        raise ConfigurationError(
            f"it is of schema version {stands_at}, written by a newer Fetchwise; this one knows {len(steps)}: upgrade"
        )
    for step in steps[stands_at:]:
        for statement in step:
            connection.execute(text(statement.format(seq=_SEQ[connection.dialect.name])))
    connection.execute(text("UPDATE schema_version SET version = :version"), {"version": len(steps)})
    return len(steps) - int(stands_at)
