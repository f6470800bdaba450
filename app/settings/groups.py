"""Every setting once: its variable, its default, and its help, which says what changes when it is set."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr

from app.core.cost import Objective, Tariff
from app.core.policy import DEFAULT_KS, Policy
from app.core.question import Missing

PREFIX = "FETCHWISE_"
_MAX_PASSAGES = 100


def _setting(variable: str, default: object, about: str, **bounds: Any) -> Any:  # noqa: ANN401 as pydantic's Field
    return Field(default, alias=PREFIX + variable, description=about, **bounds)


def _ascending(ks: tuple[int, ...]) -> tuple[int, ...]:
    if len(ks) < 2 or ks[0] != 0 or list(ks) != sorted(set(ks)) or ks[-1] > _MAX_PASSAGES:
        raise ValueError(f"must be 0 and larger numbers up to {_MAX_PASSAGES}, ascending, such as 0,1,5")
    return ks


def _items(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(",") if item.strip())


def _expanded(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise ValueError(str(error)) from error


def _located(where: Path | str) -> Path | str:
    if not str(where):
        raise ValueError("is empty: name a place, or unset it")
    return where if "://" in str(where) else _expanded(Path(where))


_Path = Annotated[Path, AfterValidator(_expanded)]
# A path, or the URL of a PostgreSQL database.
_Where = Annotated[Path | str, AfterValidator(_located)]
_Split = BeforeValidator(lambda ks: ks.split(",") if isinstance(ks, str) else ks)


class Group(BaseModel):
    """Settings that belong together. Each is read from the variable that is its alias."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class Server(Group):
    """The process: where it listens, where its data are, and what it logs."""

    host: str = _setting("HOST", "127.0.0.1", "Address to listen on.")
    port: int = _setting("PORT", 8080, "Port to listen on; 0 picks a free one.", ge=0, le=65535)
    workers: int = _setting(
        "WORKERS", 1, "Processes that answer; more than one needs a remote reader and vectors.", ge=1, le=64
    )
    data_dir: _Path = _setting("DATA_DIR", "data", "Folder of vectors, models, decisions, keys and other state.")
    log_level: Literal["debug", "info", "warning", "error"] = _setting("LOG_LEVEL", "info", "How much to log.")
    log_format: Literal["text", "json"] = _setting("LOG_FORMAT", "text", "Log lines for people, or JSON objects.")
    log_questions: bool = _setting("LOG_QUESTIONS", False, "Write the text of questions to the log.")
    traces: Literal["off", "otlp"] = _setting(
        "TRACES", "off", "`otlp` sends traces, as OpenTelemetry's own `OTEL_*` variables say."
    )


class Access(Group):
    """Who may ask."""

    keys: _Where | None = _setting(
        "KEYS",
        None,
        "File with the keys (`fetchwise keys create`), or `postgresql://` URL: gateways then share keys and limits. "
        "By default `keys.json` in the data directory, if it exists.",
    )
    open_to_anyone: Literal["", "anyone may ask and see everything"] = _setting(
        "OPEN_TO_ANYONE",
        "",
        "Lets a gateway without keys listen where others can reach it, if set to the words "
        "`anyone may ask and see everything`.",
    )
    allowed_hosts: str = _setting(
        "ALLOWED_HOSTS",
        "",
        "Names, separated by commas, by which a gateway without keys may be called, beside `localhost` and IP "
        "addresses; `*` allows every name.",
    )
    api_key: SecretStr | None = _setting("API_KEY", None, "Key that `fetchwise ask` presents to the gateway.")
    cors_origins: str = _setting(
        "CORS_ORIGINS", "", "Origins, separated by commas, whose pages may call the gateway: `https://app.example.com`."
    )

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names by which the gateway may be called."""
        return _items(self.allowed_hosts)

    @property
    def cors(self) -> tuple[str, ...]:
        """The origins that browsers may call from."""
        return tuple(origin.rstrip("/") for origin in _items(self.cors_origins))


class Reader(Group):
    """The model that answers."""

    backend: str = _setting(
        "READER",
        "embedded",
        "`embedded` starts llama.cpp here, `vllm` starts `vllm serve` here, a URL or `unix:/path` names a running "
        "server; several URLs, separated by commas, are replicas that serve the same model.",
    )
    model: str | None = _setting(
        "READER_MODEL", None, "Model to ask for, or for `vllm` to serve; needed unless the reader is `embedded`."
    )
    api_key: SecretStr | None = _setting("READER_API_KEY", None, "Bearer key of a remote reader.")
    quantisation: str | None = _setting(
        "READER_QUANTISATION", None, "Precision of the weights, e.g. `awq`, if the server does not report it."
    )
    thinking: Literal["unset", "off"] = _setting(
        "READER_THINKING", "unset", "`off` sends `enable_thinking: false` to the chat template (Qwen3 and similar)."
    )
    timeout_s: float = _setting("READER_TIMEOUT_S", 30.0, "Longest wait for one generation.", gt=0)
    threads: int | None = _setting(
        "READER_THREADS", None, "Threads of the embedded reader. By default one for each core.", ge=1
    )
    slots: int = _setting("READER_SLOTS", 2, "Answers the embedded reader generates at once.", ge=1)
    vllm_args: str = _setting("VLLM_ARGS", "", "More arguments for `vllm serve`, as on a command line.")
    prompts: _Path | None = _setting(
        "PROMPTS", None, "JSON file {closed_book, open_book} to replace the built-in prompt templates."
    )
    max_tokens: int = _setting(
        "MAX_TOKENS", 48, "Longest short answer, in tokens; a calibrator holds for one length.", ge=1, le=512
    )

    @property
    def urls(self) -> tuple[str, ...]:
        """The URLs of the replicas, or the one word that says which reader to start."""
        return _items(self.backend)


class Vectors(Group):
    """The vector store, and the collection that is searched."""

    backend: str = _setting("VECTORS", "embedded", "`embedded` keeps vectors in the data directory; or a Qdrant URL.")
    api_key: SecretStr | None = _setting("VECTORS_API_KEY", None, "API key of the Qdrant server.")
    grpc: bool = _setting("VECTORS_GRPC", False, "Use gRPC for calls to the Qdrant server.")
    timeout_s: float = _setting("VECTORS_TIMEOUT_S", 5.0, "Longest wait for one search.", gt=0)
    collection: str = _setting("COLLECTION", "demo", "Collection searched when a request names none.")
    seed: _Path | None = _setting("SEED", None, "File to ingest on start, while the collection does not exist.")


class Embedder(Group):
    """The model that embeds questions and passages."""

    backend: str = _setting(
        "EMBEDDER", "minilm", "`minilm` is bundled; else a sentence-transformers checkpoint, or a /v1/embeddings URL."
    )
    model: str | None = _setting("EMBEDDER_MODEL", None, "Model to ask a remote embedder for.")
    api_key: SecretStr | None = _setting("EMBEDDER_API_KEY", None, "Bearer key of a remote embedder.")
    query_prefix: str = _setting("EMBEDDER_QUERY_PREFIX", "", "Text put before each query; bge and e5 models need one.")
    threads: int = _setting("EMBEDDER_THREADS", 1, "Threads of the embedder.", ge=1)
    timeout_s: float = _setting("EMBEDDER_TIMEOUT_S", 5.0, "Longest wait for a remote embedding.", gt=0)


class Faults(Group):
    """Circuit breakers and retries of remote parts."""

    breaker_failures: int = _setting(
        "BREAKER_FAILURES", 5, "Failures among the last twice as many calls that open a breaker.", ge=1, le=1000
    )
    breaker_retry_s: float = _setting(
        "BREAKER_RETRY_S", 2.0, "Pause before an open breaker tries a call; up to half is added at random.", gt=0
    )
    retries: int = _setting(
        "RETRIES", 1, "How often a call to a remote part is retried, where that is safe.", ge=0, le=3
    )


class Calibration(Group):
    """The calibrator, and how much a question may read."""

    where: _Where = _setting(
        "CALIBRATORS", "calibrators/demo", "Folder with the calibrator artifacts and CURRENT, or `postgresql://` URL."
    )
    allow_uncertified: bool = _setting(
        "ALLOW_UNCERTIFIED", False, "Serve thresholds without a certificate; receipts then say `certified: false`."
    )
    ks: Annotated[tuple[int, ...], _Split, AfterValidator(_ascending)] = _setting(
        "KS",
        DEFAULT_KS,
        "Numbers of passages that a question may read, ascending from 0, separated by commas. They must be those that "
        "the calibrator was fitted on.",
    )
    policy: Policy = _setting("POLICY", Policy.LADDER, "Policy of a request that names none.")
    mandatory_retrieval: _Path | None = _setting(
        "MANDATORY_RETRIEVAL",
        None,
        "File of words and phrases, one per line: questions that contain one are answered from passages.",
    )


class Log(Group):
    """The decision log."""

    database: Annotated[str, AfterValidator(lambda where: where and str(_located(where)))] | None = _setting(
        "DECISION_LOG",
        None,
        "Where decisions and feedback are kept: a path, a SQLAlchemy URL, or `off`. By default `decisions.sqlite3` in "
        "the data directory.",
    )
    texts: Literal["full", "hash"] = _setting(
        "LOG_TEXTS", "full", "Whether the decision log keeps questions and answers, or only their SHA-256."
    )
    retention_days: int = _setting(
        "LOG_RETENTION_DAYS", 90, "Days after which a decision and its feedback are deleted; 0 keeps them.", ge=0
    )
    max_decisions: int = _setting(
        "LOG_MAX_DECISIONS",
        1_000_000,
        "Decisions kept, a few KB each; the oldest are deleted when there are more. 0 keeps all.",
        ge=0,
    )
    buffer: int = _setting(
        "LOG_BUFFER", 10_000, "Decisions that may wait to be written; more are dropped, and counted.", ge=1
    )


class Learning(Group):
    """Answers given or judged in order to learn."""

    solicit_share: float = _setting(
        "SOLICIT_SHARE", 0.05, "Share of receipts with `feedback_wanted`; only their feedback shows drift.", ge=0, le=1
    )
    explore_share: float = _setting(
        "EXPLORE_SHARE", 0.0, "Share of questions answered by a random action, to learn; 0.01 to 0.05.", ge=0, le=1
    )
    shadow_share: float = _setting(
        "SHADOW_SHARE", 0.0, "Share of questions asked again at every k in idle time, to learn.", ge=0, le=1
    )
    budget: float = _setting(
        "LEARNING_BUDGET", 0.1, "Largest share of all tokens that random actions and shadow runs may cost.", ge=0
    )


class Drift(Group):
    """The test of shown confidences on feedback."""

    action: Literal["revoke", "alert"] = _setting(
        "DRIFT_ACTION",
        "revoke",
        "What happens when feedback shows drift: `revoke` serves the calibrator's fallback "
        "until another version is promoted, `alert` only reports it.",
    )
    tolerance: float = _setting(
        "DRIFT_TOLERANCE", 0.05, "How much mean confidence may differ from the share of right answers.", ge=0, lt=1
    )
    delta: float = _setting(
        "DRIFT_DELTA", 0.05, "Largest probability that a sound calibrator is ever revoked.", gt=0, lt=1
    )
    wait_hours: float = _setting(
        "DRIFT_WAIT_HOURS",
        24.0,
        "Hours after which an answer counts for drift, judged or not; longer than most callers need for their verdict.",
        gt=0,
    )


class Economics(Group):
    """What gating costs and saves."""

    window_s: int = _setting(
        "BREAK_EVEN_WINDOW_S",
        900,
        "Seconds of traffic by which gating is judged, on `/breakeven` and in the gauges.",
        ge=10,
        le=86_400,
    )
    prompt_token: float = _setting("TARIFF_PROMPT_TOKEN", 0.0, "Price of a prompt token, in your currency.", ge=0)
    completion_token: float = _setting("TARIFF_COMPLETION_TOKEN", 0.0, "Price of a generated token.", ge=0)
    call: float = _setting("TARIFF_CALL", 0.0, "Price of a retrieval call.", ge=0)
    passage: float = _setting("TARIFF_PASSAGE", 0.0, "Price of a retrieved passage.", ge=0)
    bypass: Literal["off", "auto"] = _setting(
        "BYPASS", "off", "`auto` lets most questions bypass the gate while it costs more than it saves."
    )
    objective: Objective = _setting(
        "OBJECTIVE", Objective.LATENCY, "The cost by which `auto` judges gating; `money` needs a tariff."
    )

    @property
    def tariff(self) -> Tariff:
        """The prices as one value."""
        return Tariff(
            prompt_token=self.prompt_token, completion_token=self.completion_token, call=self.call, passage=self.passage
        )


class Chat(Group):
    """What chats and other requests of the OpenAI API get by default."""

    missing: Missing = _setting(
        "MISSING",
        "note",
        "A chat without evidence, because nothing was found, the search failed or the question is out of scope: `note` "
        "tells the reader, `withhold` gives no answer, `answer` adds nothing.",
    )
    strict: bool = _setting(
        "STRICT", False, "Refuse fields of the OpenAI API that cannot be honoured, instead of ignoring them."
    )


class Limits(Group):
    """How much is taken on at once, how long it may take, and how large it may be."""

    max_in_flight: int = _setting(
        "MAX_IN_FLIGHT", 64, "Questions that a worker answers at once, at most 8 per slot of an embedded reader.", ge=1
    )
    queue: int = _setting("QUEUE", 16, "Questions that may wait for their turn; more get 429 at once.", ge=0)
    queue_wait_s: float = _setting("QUEUE_WAIT_S", 1.0, "Longest wait in the queue; after it comes 429.", gt=0)
    request_timeout_s: float = _setting(
        "REQUEST_TIMEOUT_S", 60.0, "Longest time for one question with its queue; `timeout_ms` can shorten it.", gt=0
    )
    client_timeout_s: float = _setting(
        "CLIENT_TIMEOUT_S",
        10.0,
        "Longest time for a request to arrive, and for a response to be read; a slower connection is closed.",
        gt=0,
    )
    max_connections: int = _setting(
        "MAX_CONNECTIONS", 2048, "Open connections of a worker; more get 503 and are closed.", ge=16
    )
    drain_s: float = _setting(
        "DRAIN_S", 10.0, "After SIGTERM, how long `/readyz` is 503 before the gateway stops listening.", ge=0
    )
    shutdown_timeout_s: float = _setting(
        "SHUTDOWN_TIMEOUT_S", 25.0, "Longest time for running answers to finish on shutdown.", gt=0
    )
    max_body_bytes: int = _setting("MAX_BODY_BYTES", 1048576, "Largest request body.", ge=1024)
    max_question_chars: int = _setting(
        "MAX_QUESTION_CHARS", 2000, "Longest question; of a longer chat message the end is searched.", ge=1
    )
