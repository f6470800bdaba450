"""Schema versions of the decision log: every older database becomes today's, with all that is in it."""

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, inspect, text

from app.adapters.decision_migrations import STEPS, migrate
from app.adapters.decision_reading import pages
from app.adapters.decision_store import SqlDecisionStore
from app.adapters.decision_tables import metadata
from app.decision.feedback import Feedback, Judged
from app.errors import ConfigurationError
from tests.fakes.records import a_record

ROW = """
    INSERT INTO decisions (id, created_at, question_sha256, collection, policy, retrieval, abstain, filtered, action, k,
        reason, signals, read_signals, certified, schedule, explored, solicited, shadowed, passages, retrieval_calls,
        total_ms, tags, question, answer)
    VALUES ('old', 1.0, '', 'demo', 'graded', 'auto', 1, 0, 'k0', 0, 'confident', '{"margin":2.5}', '{}', 0, 'serial',
        0, 0, 0, '[]', 0, 12.5, '{}', 'Where?', 'Paris')
"""


def described(engine: Engine) -> dict[str, Any]:
    """Every table: columns with kind and nullability, unique columns, indexes, foreign keys."""
    found = inspect(engine)
    return {
        table: {
            "columns": [
                (c["name"], c["type"]._type_affinity, c["nullable"] or c["name"] == "seq")
                for c in found.get_columns(table)
            ],
            "unique": [u["column_names"] for u in found.get_unique_constraints(table)],
            "indexes": sorted((i["name"] or "", tuple(i["column_names"])) for i in found.get_indexes(table)),
            "foreign": [
                (f["constrained_columns"], f["referred_table"], f["options"]) for f in found.get_foreign_keys(table)
            ],
        }
        for table in found.get_table_names()
        if table not in {"schema_version", "sqlite_sequence"}
    }


def test_the_steps_lead_to_the_tables_that_the_code_speaks_of(tmp_path: Path) -> None:
    """A database made by the migrations equals one made from the definitions, column by column."""
    migrated = SqlDecisionStore.open(str(tmp_path / "migrated.sqlite3"))
    defined = create_engine(f"sqlite:///{tmp_path}/defined.sqlite3")
    metadata.create_all(defined)
    assert described(migrated.engine) == described(defined)
    migrated.close()
    defined.dispose()


@pytest.mark.parametrize("version", range(1, len(STEPS)))
def test_an_older_database_is_brought_up_to_date_with_its_rows(tmp_path: Path, version: int) -> None:
    """What an older release logged is there after the start, can be judged, and new decisions join it."""
    path = tmp_path / "decisions.sqlite3"
    old = create_engine(f"sqlite:///{path}")
    with old.begin() as connection:
        migrate(connection, STEPS[:version])
        connection.exec_driver_sql(ROW)
    old.dispose()
    store = SqlDecisionStore.open(str(path))
    (outcome,) = store.write([(2.0, a_record(id="new"))], [(3.0, Feedback("old", references=("Paris",)))])
    assert isinstance(outcome, Judged)
    assert outcome.correct
    rows = [row for page in pages(store.engine, 0.0) for row in page]
    assert [(row["id"], row["signals"], row["total_ms"]) for row in rows] == [
        ("old", {"margin": 2.5}, 12.5),
        ("new", {}, 620.0),
    ]
    store.close()


def test_a_second_start_changes_nothing(tmp_path: Path) -> None:
    """A database that is up to date takes no step."""
    path = str(tmp_path / "decisions.sqlite3")
    SqlDecisionStore.open(path).close()
    store = SqlDecisionStore.open(path)
    with store.engine.begin() as connection:
        assert migrate(connection) == 0
    store.close()


def test_a_newer_database_is_refused(tmp_path: Path) -> None:
    """An older release does not write into what it does not know."""
    path = str(tmp_path / "decisions.sqlite3")
    store = SqlDecisionStore.open(path)
    with store.engine.begin() as connection:
        connection.execute(text("UPDATE schema_version SET version = 99"))
    store.close()
    with pytest.raises(ConfigurationError, match="version 99"):
        SqlDecisionStore.open(path)


def test_a_step_that_fails_leaves_the_database_as_it_was(tmp_path: Path) -> None:
    """All steps or none: a start that failed half-way can be repeated."""
    store = SqlDecisionStore.open(str(tmp_path / "decisions.sqlite3"))
    before = described(store.engine)
    broken = (*STEPS, ("ALTER TABLE decisions ADD COLUMN extra TEXT", "ALTER TABLE nowhere ADD COLUMN extra TEXT"))
    with (
        pytest.raises(Exception, match="nowhere"),
        store.engine.connect().execution_options(fetchwise_writes=True) as connection,
        connection.begin(),
    ):
        migrate(connection, broken)
    assert described(store.engine) == before
    with store.engine.begin() as connection:
        assert migrate(connection) == 0
    store.close()


def test_a_table_of_someone_else_is_not_touched(tmp_path: Path) -> None:
    """A database with a foreign table of that name is refused."""
    path = tmp_path / "theirs.sqlite3"
    theirs = create_engine(f"sqlite:///{path}")
    with theirs.begin() as connection:
        connection.execute(text("CREATE TABLE decisions (verdict TEXT)"))
    with pytest.raises(ConfigurationError, match="not Fetchwise's"):
        SqlDecisionStore.open(str(path))
    assert inspect(theirs).get_table_names() == ["decisions"]
    theirs.dispose()
