"""The decision log's tables as they are today; how they came to be so is in `decision_migrations`."""

from sqlalchemy import JSON, BigInteger, Boolean, Column, Double, ForeignKey, Integer, MetaData, Table, Text

metadata = MetaData()

_SEQ = BigInteger().with_variant(Integer, "sqlite")
_JSON = JSON(none_as_null=True)

decisions = Table(
    "decisions",
    metadata,
    # The order of arrival, in which the table is paged through.
    Column("seq", _SEQ, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    # Unix seconds.
    Column("created_at", Double, nullable=False, index=True),
    # Whose question it was, where callers have keys.
    Column("key", Text),
    # The texts are NULL where only their hashes are kept.
    Column("question", Text),
    Column("question_sha256", Text, nullable=False),
    Column("answer", Text),
    Column("answer_sha256", Text),
    Column("collection", Text, nullable=False),
    Column("policy", Text, nullable=False),
    Column("retrieval", Text, nullable=False),
    Column("abstain", Boolean, nullable=False),
    Column("filtered", Boolean, nullable=False),
    Column("action", Text, nullable=False),
    Column("k", Integer, nullable=False),
    Column("reason", Text, nullable=False),
    Column("confidence", Double),
    Column("p_closed_book", Double),
    Column("signals", _JSON, nullable=False),
    Column("read_signals", _JSON, nullable=False),
    Column("tau0", Double),
    Column("tau1", Double),
    Column("tau_abstain", Double),
    Column("calibrator", Text),
    Column("certified", Boolean, nullable=False),
    Column("schedule", Text, nullable=False),
    Column("propensities", _JSON),
    Column("explored", Boolean, nullable=False),
    Column("solicited", Boolean, nullable=False),
    Column("shadowed", Boolean, nullable=False),
    Column("passages", _JSON, nullable=False),
    Column("retrieval_calls", Integer, nullable=False),
    Column("failed_part", Text),
    Column("failure_kind", Text),
    Column("probe_prompt_tokens", BigInteger),
    Column("probe_completion_tokens", BigInteger),
    Column("read_prompt_tokens", BigInteger),
    Column("read_completion_tokens", BigInteger),
    Column("probe_ms", Double),
    Column("embed_ms", Double),
    Column("search_ms", Double),
    Column("read_ms", Double),
    Column("total_ms", Double, nullable=False),
    Column("tags", _JSON, nullable=False),
    Column("wasted_prompt_tokens", BigInteger),
    Column("wasted_completion_tokens", BigInteger),
)

# Nothing is ever changed here: the last row of a decision is in force, the others are its history.
feedback = Table(
    "feedback",
    metadata,
    Column("seq", _SEQ, primary_key=True),
    Column("decision_id", Text, ForeignKey("decisions.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("given_at", Double, nullable=False),
    Column("key", Text),
    # NULL where the answer was withheld: nothing was right or wrong, but the references label its shadow run.
    Column("correct", Boolean),
    Column("source", Text, nullable=False),
    Column("reference_answers", _JSON, nullable=False),
    Column("comment", Text),
    Column("tags", _JSON, nullable=False),
    Column("replaced", Boolean, nullable=False),
)

# What every action answered to some questions, asked again when nobody waited.
shadows = Table(
    "shadows",
    metadata,
    Column("seq", _SEQ, primary_key=True),
    Column("decision_id", Text, ForeignKey("decisions.id", ondelete="CASCADE"), nullable=False, unique=True),
    Column("at", Double, nullable=False),
    # The system that was asked, in the words of a calibrator's identity.
    Column("identity", _JSON, nullable=False),
    # By k, as text: answer, signals, tokens and milliseconds.
    Column("outcomes", _JSON, nullable=False),
)
