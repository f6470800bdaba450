"""The decision log's tables, and how a decision becomes a row: each column of `decisions` is one line here.

Whatever a model or a caller wrote, the row can be stored.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Literal, NamedTuple

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Connection,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    insert,
    inspect,
    or_,
    select,
)
from sqlalchemy.types import TypeEngine

from app.core.available import Usage
from app.core.record import DecisionRecord, FullRun
from app.core.replay import inputs_of, step_values
from app.errors import ConfigurationError
from app.storage.database import as_json

Texts = Literal["full", "hash"]

_LARGEST = 2**63 - 1


def _optional_json(value: object) -> str | None:
    return None if value is None else as_json(value)


def storable(text: str) -> str:
    """The text without what a database refuses: lone surrogates, and NUL, which PostgreSQL does not take."""
    try:
        text.encode()
    except UnicodeEncodeError:
        text = text.encode(errors="replace").decode()
    return text.replace("\0", "\ufffd")


def storable_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """The same for labels."""
    return {storable(name): storable(value) for name, value in tags.items()}


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# Counts come from a server's reply: cut to the largest that a column holds.
def _prompt(usage: Usage | None) -> int | None:
    return min(usage.prompt_tokens, _LARGEST) if usage else None


def _completion(usage: Usage | None) -> int | None:
    return min(usage.completion_tokens, _LARGEST) if usage else None


class _Field(NamedTuple):
    """A column, and its value as the driver takes it."""

    name: str
    kind: type[TypeEngine[Any]]
    value: Callable[[DecisionRecord], object]
    optional: bool = False


_FIELDS = (
    # Whose question it was, where callers have keys.
    _Field("key", Text, lambda one: one.question.key, optional=True),
    _Field("collection", Text, lambda one: storable(one.question.collection)),
    # How it was asked: `answer`, `chat` or `full`; in a conversation also how its question was found.
    _Field("mode", Text, lambda one: one.question.mode),
    _Field("standalone", Text, lambda one: one.question.standalone and one.question.standalone.how, optional=True),
    _Field("policy", Text, lambda one: one.question.options.policy.value),
    _Field("retrieval", Text, lambda one: one.question.options.retrieval.value),
    _Field("abstain", Boolean, lambda one: one.question.options.abstain),
    _Field("filtered", Boolean, lambda one: one.question.options.filtered),
    _Field("action", Text, lambda one: one.action),
    _Field("k", Integer, lambda one: one.reply.k),
    _Field("reason", Text, lambda one: one.reply.reason.value),
    _Field("confidence", Double, lambda one: one.reply.confidence, optional=True),
    _Field("p_closed_book", Double, lambda one: one.p_closed_book, optional=True),
    _Field("evidence", JSON, lambda one: as_json(one.available.evidence)),
    _Field("tau0", Double, lambda one: one.policy.thresholds and one.policy.thresholds.tau0, optional=True),
    _Field("tau1", Double, lambda one: one.policy.thresholds and one.policy.thresholds.tau1, optional=True),
    _Field("tau_abstain", Double, lambda one: one.policy.tau, optional=True),
    _Field("calibrator", Text, lambda one: one.policy.version, optional=True),
    _Field("certified", Boolean, lambda one: one.reply.certified),
    _Field("in_scope", Boolean, lambda one: one.reply.in_scope),
    _Field("truncated", Boolean, lambda one: one.reply.truncated),
    _Field("propensities", JSON, lambda one: _optional_json(one.propensities), optional=True),
    _Field("explored", Boolean, lambda one: one.policy.explored),
    _Field("solicited", Boolean, lambda one: one.solicited),
    _Field("shadowed", Boolean, lambda one: one.policy.sampled.shadow),
    _Field("passages", JSON, lambda one: as_json([storable(passage.id) for passage in one.citations])),
    _Field("searches", Integer, lambda one: one.searches),
    # In all prompts: the ladder may read more than once.
    _Field("passages_read", Integer, lambda one: one.passages_read),
    _Field("failed_upstream", Text, lambda one: one.failure and one.failure[0], optional=True),
    _Field("failure_kind", Text, lambda one: one.policy.failure and one.policy.failure.error.kind, optional=True),
    # All inputs of the decision beside evidence and failure, and its steps: enough to replay it.
    _Field("effective_policy", JSON, lambda one: as_json(inputs_of(one.policy))),
    _Field("steps", JSON, lambda one: as_json([step_values(step) for step in one.steps])),
    _Field("probe_prompt_tokens", BigInteger, lambda one: _prompt(one.probe_usage), optional=True),
    _Field("probe_completion_tokens", BigInteger, lambda one: _completion(one.probe_usage), optional=True),
    _Field("read_prompt_tokens", BigInteger, lambda one: _prompt(one.read_usage), optional=True),
    _Field("read_completion_tokens", BigInteger, lambda one: _completion(one.read_usage), optional=True),
    _Field("write_prompt_tokens", BigInteger, lambda one: _prompt(one.write_usage), optional=True),
    _Field("write_completion_tokens", BigInteger, lambda one: _completion(one.write_usage), optional=True),
    _Field("rewrite_prompt_tokens", BigInteger, lambda one: _prompt(one.rewrite_usage), optional=True),
    _Field("rewrite_completion_tokens", BigInteger, lambda one: _completion(one.rewrite_usage), optional=True),
    _Field("probe_ms", Double, lambda one: one.timings.probe, optional=True),
    _Field("embed_ms", Double, lambda one: one.timings.embed, optional=True),
    _Field("search_ms", Double, lambda one: one.timings.search, optional=True),
    _Field("read_ms", Double, lambda one: one.timings.read, optional=True),
    _Field("write_ms", Double, lambda one: one.timings.write, optional=True),
    _Field("rewrite_ms", Double, lambda one: one.timings.rewrite, optional=True),
    _Field("total_ms", Double, lambda one: one.timings.total),
    _Field("tags", JSON, lambda one: as_json(storable_tags(one.question.tags))),
)

metadata = MetaData()
_SEQ = BigInteger().with_variant(Integer, "sqlite")


def _table(name: str, *columns: Column[Any]) -> Table:
    # AUTOINCREMENT: the number of a pruned row is not used again.
    return Table(name, metadata, Column("seq", _SEQ, primary_key=True), *columns, sqlite_autoincrement=True)


def _about(*, unique: bool) -> Column[str]:
    decision = ForeignKey("decisions.id", ondelete="CASCADE")
    return Column("decision_id", Text, decision, nullable=False, unique=unique, index=not unique)


schema_version = Table("schema_version", metadata, Column("version", Text, nullable=False))

# `seq` is the order of arrival, in which the table is paged through.
decisions = _table(
    "decisions",
    Column("id", Text, nullable=False, unique=True),
    # Unix seconds.
    Column("created_at", Double, nullable=False, index=True),
    # The texts are NULL where only their hashes are kept.
    Column("question", Text),
    Column("question_sha256", Text, nullable=False),
    Column("answer", Text),
    Column("answer_sha256", Text),
    # The last message of a conversation as typed, where `question` is another text.
    Column("message", Text),
    *(Column(field.name, field.kind, nullable=field.optional) for field in _FIELDS),
)

# Whether a verdict was asked for, drawn at random. The drift test reads only these, by calibrator.
ASKED = or_(decisions.c.solicited.is_(True), decisions.c.shadowed.is_(True))
Index("decisions_asked", decisions.c.calibrator, decisions.c.seq, sqlite_where=ASKED, postgresql_where=ASKED)

# Rows are only added: the last row of a decision counts, the others are its history.
feedback = _table(
    "feedback",
    _about(unique=False),
    Column("created_at", Double, nullable=False),
    Column("key", Text),
    # NULL where the answer was withheld; the references then label its shadow run.
    Column("correct", Boolean),
    Column("source", Text, nullable=False),
    Column("reference_answers", JSON, nullable=False),
    Column("comment", Text),
    Column("tags", JSON, nullable=False),
    Column("replaced", Boolean, nullable=False),
)

# Shadow runs: the answers at every k, generated again in the background.
full_runs = _table(
    "full_runs",
    _about(unique=True),
    Column("created_at", Double, nullable=False),
    # The system that answered, with the fields of a calibrator's identity.
    Column("identity", JSON, nullable=False),
    # By k, as text: answer, signals, tokens and milliseconds.
    Column("outcomes", JSON, nullable=False),
    # Of the question, the search and all its answers, by name.
    Column("evidence", JSON, nullable=False),
)

# A digest of the tables, so that it changes with them.
VERSION = _sha256(
    repr([(str(one), str(one.type), one.nullable) for table in metadata.sorted_tables for one in table.columns])
)[:8]


def decision_row(at: float, record: DecisionRecord, texts: Texts) -> tuple[object, ...]:
    """The columns of `decisions` after `seq`, in order; with `hash` only the SHA-256 of the texts."""
    question = storable(record.question.text)
    answer = None if record.reply.text is None else storable(record.reply.text)
    typed = record.question.standalone and storable(record.question.standalone.original)
    kept = texts == "full"
    return (
        record.question.id,
        at,
        question if kept else None,
        _sha256(question),
        answer if kept else None,
        None if answer is None else _sha256(answer),
        typed if kept and typed != question else None,
        *[field.value(record) for field in _FIELDS],
    )


def full_run_row(at: float, shadow: FullRun, texts: Texts) -> dict[str, Any]:
    """The columns of `full_runs` after `seq`; with `hash`, without the answers, so that none can be judged."""
    return {
        "decision_id": shadow.id,
        "created_at": at,
        "identity": asdict(shadow.identity),
        "outcomes": {
            str(k): asdict(outcome) | {"answer": storable(outcome.answer) if texts == "full" else None}
            for k, outcome in shadow.outcomes.items()
        },
        "evidence": dict(shadow.evidence),
    }


def prepare(connection: Connection) -> None:
    """Create the tables of a new database, within the caller's transaction; ConfigurationError if it has others."""
    present = metadata.tables.keys() & set(inspect(connection).get_table_names())
    if not present:
        metadata.create_all(connection)
        connection.execute(insert(schema_version).values(version=VERSION))
        return
    found = connection.scalar(select(schema_version.c.version)) if schema_version.name in present else None
    if found is None:
        raise ConfigurationError(
            f"it has tables that are not Fetchwise's ({', '.join(sorted(present))}): name another one"
        )
    # As text: another version may have stored a number.
    if str(found) != VERSION:
        raise ConfigurationError(
            f"its tables have schema version {found}, and this release of Fetchwise needs {VERSION}: move it away "
            "(`fetchwise log export` of the release that wrote it reads it), or name another one"
        )
