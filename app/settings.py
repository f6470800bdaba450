"""Every setting once: its name, default and help. Read from FETCHWISE_* variables, and passed on as arguments."""

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from app.core.cost import Objective, Tariff
from app.core.policy import DEFAULT_KS, Policy

_MOST_PASSAGES = 100


class Settings(BaseSettings):
    """How this gateway is operated. Learned numbers are not here: they live in the calibrator artifact."""

    model_config = SettingsConfigDict(env_prefix="FETCHWISE_", frozen=True, extra="forbid")

    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(default=8080, ge=0, le=65535, description="Port to listen on; 0 picks a free one.")
    workers: int = Field(
        default=1, ge=1, le=64, description="Processes that answer; more than one needs a remote reader and vectors."
    )
    keys: Path | None = Field(
        default=None,
        description="File with the keys, made by `fetchwise keys create`. "
        "By default `keys.json` in the data directory, if it is there.",
    )
    open_to_anyone: Literal["", "anyone may ask and see everything"] = Field(
        default="",
        description="Lets a gateway without keys listen where others can reach it, if set to the words "
        "`anyone may ask and see everything`.",
    )
    api_key: SecretStr | None = Field(default=None, description="Key that `fetchwise ask` presents to the gateway.")
    cors_origins: str = Field(
        default="",
        description="Origins, such as `https://app.example.com`, whose pages may call the gateway from a browser, "
        "with commas between them.",
    )
    data_dir: Path = Field(default=Path("data"), description="Where the embedded vectors, model cache and logs live.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="How much to log.")
    log_format: Literal["text", "json"] = Field(default="text", description="Log lines for people, or JSON objects.")
    log_questions: bool = Field(default=False, description="Let the log hold the text of questions.")
    traces: Literal["off", "otlp"] = Field(
        default="off",
        description="`otlp` sends traces; where to and how is said by OpenTelemetry's own `OTEL_*` variables.",
    )

    reader: str = Field(
        default="embedded",
        description="`embedded` starts llama.cpp here, `vllm` starts `vllm serve` here, a URL names a running server; "
        "several URLs, with commas between them, are replicas that serve the same.",
    )
    reader_model: str | None = Field(
        default=None, description="Model to ask for; needed unless the reader is `embedded`. For `vllm`, what to serve."
    )
    reader_api_key: SecretStr | None = Field(default=None, description="Bearer key of a remote reader.")
    reader_quantisation: str | None = Field(
        default=None,
        description="Names the weights' precision in the identity where the server does not tell, e.g. `awq`.",
    )
    reader_thinking: Literal["unset", "off"] = Field(
        default="unset", description="`off` sends `enable_thinking: false` to the chat template (Qwen3 and its like)."
    )
    reader_timeout_s: float = Field(default=30.0, gt=0, description="Longest wait for one generation.")
    reader_threads: int = Field(
        default_factory=lambda: os.cpu_count() or 1, ge=1, description="Threads of the embedded reader; all cores."
    )
    reader_slots: int = Field(default=2, ge=1, description="Answers the embedded reader generates at once.")
    vllm_args: str = Field(default="", description="More arguments for `vllm serve`, as on a command line.")
    prompts: Path | None = Field(
        default=None, description="JSON file {closed_book, open_book} to replace the built-in prompt templates."
    )
    max_tokens: int = Field(default=24, ge=1, le=512, description="Longest answer, in tokens.")

    vectors: str = Field(
        default="embedded", description="`embedded` keeps vectors in the data directory; or a Qdrant URL."
    )
    vectors_api_key: SecretStr | None = Field(default=None, description="API key of the Qdrant server.")
    vectors_grpc: bool = Field(default=False, description="Speak gRPC to the Qdrant server.")
    vectors_timeout_s: float = Field(default=5.0, gt=0, description="Longest wait for one search.")
    collection: str = Field(default="demo", description="Collection searched when a request names none.")
    seed: Path | None = Field(
        default=None, description="File to ingest on the first start, while the collection does not exist yet."
    )

    embedder: str = Field(
        default="minilm",
        description="`minilm` is bundled; else a sentence-transformers checkpoint, or a /v1/embeddings URL.",
    )
    embedder_model: str | None = Field(default=None, description="Model to ask a remote embedder for.")
    embedder_api_key: SecretStr | None = Field(default=None, description="Bearer key of a remote embedder.")
    embedder_query_prefix: str = Field(
        default="", description="Text put before each query; bge and e5 models want one."
    )
    embedder_threads: int = Field(default=1, ge=1, description="Threads of the embedder.")
    embedder_timeout_s: float = Field(default=5.0, gt=0, description="Longest wait for a remote embedding.")

    breaker_failures: int = Field(
        default=5,
        ge=1,
        le=1000,
        description="Failures among the last twice as many calls after which a remote part is left alone for a while.",
    )
    breaker_retry_s: float = Field(
        default=2.0, gt=0, description="How long it is left alone before it is tried again; up to half as long again."
    )
    retries: int = Field(
        default=1, ge=0, le=3, description="How often a call to a remote part is tried again, where that is safe."
    )

    calibrators: Path = Field(
        default=Path("calibrators/demo"), description="Folder with the calibrator artifacts and CURRENT."
    )
    allow_uncertified: bool = Field(
        default=False,
        description="Serve thresholds that carry no certificate; receipts then say `certified: false`.",
    )
    ks: Annotated[tuple[int, ...], NoDecode] = Field(
        default=DEFAULT_KS,
        description="Numbers of passages that a question may read, ascending from 0, with commas between them. "
        "A calibrator serves only where it was fitted on the same.",
    )
    policy: Policy = Field(default=Policy.GRADED, description="Policy of a request that names none.")

    decision_log: str | None = Field(
        default=None,
        description="Where decisions and feedback are kept: a path, a SQLAlchemy URL, or `off`. "
        "By default `decisions.sqlite3` in the data directory.",
    )
    log_texts: Literal["full", "hash"] = Field(
        default="full", description="Whether the decision log keeps questions and answers, or only their SHA-256."
    )
    log_retention_days: int = Field(
        default=90, ge=0, description="Days after which a decision and its feedback are deleted; 0 keeps them."
    )
    log_buffer: int = Field(
        default=10_000, ge=1, description="Decisions that may wait to be written; more are dropped, and counted."
    )

    solicit_share: float = Field(
        default=0.05,
        ge=0,
        le=1,
        description="Share of answers whose receipt says `feedback_wanted`; only feedback on these can show drift.",
    )
    drift_action: Literal["revoke", "alert"] = Field(
        default="revoke",
        description="What follows where feedback shows that confidences are too high: `revoke` serves the calibrator's "
        "fallback until another version is in force, `alert` only says so.",
    )
    drift_tolerance: float = Field(
        default=0.05, ge=0, lt=1, description="How much mean confidence may exceed the share of right answers."
    )
    drift_delta: float = Field(
        default=0.05, gt=0, lt=1, description="How likely a sound calibrator is ever revoked, at most."
    )
    explore_share: float = Field(
        default=0.0, ge=0, le=1, description="Share of questions answered by a random action, to learn; 0.01 to 0.05."
    )
    shadow_share: float = Field(
        default=0.0, ge=0, le=1, description="Share of questions asked again at every k in idle moments, to learn."
    )
    learning_budget: float = Field(
        default=0.1, ge=0, description="Most that random actions and shadow runs may cost, as a share of all tokens."
    )

    break_even_window_s: int = Field(
        default=900,
        ge=10,
        le=86_400,
        description="Seconds of traffic by which gating is judged, on `/breakeven` and in the gauges.",
    )
    tariff_prompt_token: float = Field(default=0.0, ge=0, description="What a prompt token costs, in your currency.")
    tariff_completion_token: float = Field(default=0.0, ge=0, description="What a generated token costs.")
    tariff_call: float = Field(default=0.0, ge=0, description="What a retrieval call costs.")
    tariff_passage: float = Field(default=0.0, ge=0, description="What a retrieved passage costs.")

    bypass: Literal["off", "auto"] = Field(
        default="off", description="`auto` has most questions bypass the gate while it costs more than it saves."
    )
    objective: Objective = Field(
        default=Objective.LATENCY, description="What `auto` judges gating by; `money` needs a tariff."
    )
    mandatory_retrieval: Path | None = Field(
        default=None,
        description="File of words and phrases, one a line: questions that hold one are answered from passages.",
    )

    max_in_flight: int = Field(
        default=64,
        ge=1,
        description="Questions worked on at once by a worker, at most 8 a slot of an embedded reader.",
    )
    queue: int = Field(
        default=16,
        ge=0,
        description="Questions that may wait for one of these to end, first come first served; more get 429 at once.",
    )
    queue_wait_s: float = Field(default=1.0, gt=0, description="Longest wait in this line; who waits longer gets 429.")
    request_timeout_s: float = Field(
        default=60.0,
        gt=0,
        description="Longest time for one question, all stages and the wait in line; `timeout_ms` of a request may be "
        "shorter.",
    )
    receive_timeout_s: float = Field(
        default=10.0, gt=0, description="Longest time for a request to come in; a connection that is slower is closed."
    )
    shutdown_timeout_s: float = Field(
        default=25.0, gt=0, description="Longest time, once told to stop, for the answers under way to end."
    )
    max_body_bytes: int = Field(default=65536, ge=1024, description="Largest request body.")
    max_question_chars: int = Field(default=2000, ge=1, description="Longest question.")
    max_earlier_chars: int = Field(
        default=8000, ge=0, description="Longest conversation before a question, all its messages together."
    )

    @field_validator("ks", mode="before")
    @classmethod
    def _split(cls, ks: object) -> object:
        return ks.split(",") if isinstance(ks, str) else ks

    @field_validator("ks")
    @classmethod
    def _ascending(cls, ks: tuple[int, ...]) -> tuple[int, ...]:
        if len(ks) < 2 or ks[0] != 0 or list(ks) != sorted(set(ks)) or ks[-1] > _MOST_PASSAGES:
            raise ValueError(f"must be 0 and larger numbers up to {_MOST_PASSAGES}, ascending, such as 0,1,5")
        return ks

    @field_validator("calibrators", "data_dir", "keys", "mandatory_retrieval", "prompts", "seed")
    @classmethod
    def _expand(cls, path: Path | None) -> Path | None:
        return path.expanduser() if path is not None else None

    @property
    def permits(self) -> int:
        """How many questions to work on at once: an embedded reader with a longer queue would only time out."""
        return min(self.max_in_flight, 8 * self.reader_slots) if self.reader == "embedded" else self.max_in_flight

    @property
    def readers(self) -> tuple[str, ...]:
        """The URLs of the replicas, or the one word that says which reader to start."""
        return tuple(reader.strip() for reader in self.reader.split(",") if reader.strip())

    @property
    def keys_at(self) -> Path:
        """Where the keys are, if there are any."""
        return self.keys or self.data_dir / "keys.json"

    @property
    def cors(self) -> tuple[str, ...]:
        """The origins that browsers may call from."""
        return tuple(origin.strip().rstrip("/") for origin in self.cors_origins.split(",") if origin.strip())

    @property
    def decision_log_at(self) -> str | None:
        """The path or URL of the decision log; None where none is kept."""
        if self.decision_log == "off":
            return None
        return self.decision_log or str(self.data_dir / "decisions.sqlite3")

    @property
    def tariff(self) -> Tariff:
        """What the operator pays, as one value."""
        return Tariff(
            prompt_token=self.tariff_prompt_token,
            completion_token=self.tariff_completion_token,
            call=self.tariff_call,
            passage=self.tariff_passage,
        )
