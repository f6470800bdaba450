"""Every setting once: its name, default and help. Read from FETCHWISE_* variables, and passed on as arguments."""

import os
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from app.decision.policy import Policy, Prices


class Settings(BaseSettings):
    """How this gateway is operated. Learned numbers are not here: they live in the calibrator artifact."""

    model_config = SettingsConfigDict(env_prefix="FETCHWISE_", frozen=True, extra="forbid")

    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(default=8080, ge=0, le=65535, description="Port to listen on; 0 picks a free one.")
    data_dir: Path = Field(default=Path("data"), description="Where the embedded vectors, model cache and logs live.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="How much to log.")

    reader: str = Field(
        default="embedded",
        description="`embedded` starts llama.cpp here, `vllm` starts `vllm serve` here, a URL names a running server.",
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

    calibrators: Path = Field(
        default=Path("calibrators/demo"), description="Folder with the calibrator artifacts and CURRENT."
    )
    allow_uncertified: bool = Field(
        default=False,
        description="Serve thresholds that carry no certificate; receipts then say `certified: false`.",
    )
    policy: Policy = Field(default=Policy.GRADED, description="Policy of a request that names none.")
    price_right: float = Field(default=1.0, description="Utility policy: worth of a right answer.")
    price_wrong: float = Field(default=1.0, description="Utility policy: cost of a wrong answer.")
    price_call: float = Field(default=0.0, ge=0, description="Utility policy: price of a retrieval call.")
    price_passage: float = Field(default=0.0, ge=0, description="Utility policy: price of a passage read.")
    price_ms: float = Field(default=0.0, ge=0, description="Utility policy: price of a millisecond.")
    price_abstain: float = Field(default=0.0, description="Utility policy: cost of not answering.")

    max_in_flight: int = Field(
        default=64,
        ge=1,
        description="Questions worked on at once, at most 8 a slot of an embedded reader; more are answered 429.",
    )
    request_timeout_s: float = Field(
        default=60.0, gt=0, description="Longest time for one question, all stages together."
    )
    max_body_bytes: int = Field(default=65536, ge=1024, description="Largest request body.")
    max_question_chars: int = Field(default=2000, ge=1, description="Longest question.")

    @field_validator("calibrators", "data_dir", "seed", "prompts")
    @classmethod
    def _expand(cls, path: Path | None) -> Path | None:
        return path.expanduser() if path is not None else None

    @property
    def permits(self) -> int:
        """How many questions to work on at once: an embedded reader with a longer queue would only time out."""
        return min(self.max_in_flight, 8 * self.reader_slots) if self.reader == "embedded" else self.max_in_flight

    @property
    def prices(self) -> Prices:
        """The operator's prices as one value."""
        return Prices(
            right=self.price_right,
            wrong=self.price_wrong,
            call=self.price_call,
            passage=self.price_passage,
            ms=self.price_ms,
            abstain=self.price_abstain,
        )
