"""Opens the parts that the settings name, in one place: the reader, the embedder and the vectors."""

import asyncio
import json
import os
import shlex
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from app.access.keys import KeyFile, KeyStore
from app.core.artifact import Identity
from app.core.prompts import DEFAULT, Prompts
from app.core.rules import Mandatory, compile_rules
from app.errors import ConfigurationError, FetchwiseError
from app.learning.log import DecisionLog, LogMetrics
from app.ports import Embedder, Reader, VectorStore
from app.settings import Settings
from app.storage.decisions import SqlDecisionStore
from app.storage.documents import open_documents
from app.storage.fleet_rates import FleetRates
from app.storage.folder import FolderDocuments
from app.storage.rates import SharedRates
from app.upstream.child import ChildServer
from app.upstream.embedders.openai import OpenAIEmbedder
from app.upstream.embedders.sentence_transformer import SentenceTransformerEmbedder
from app.upstream.readers.balanced import BalancedReader
from app.upstream.readers.openai import OpenAIReader
from app.upstream.readers.servers import MODEL, embedded_model, llama_server, vllm_server
from app.upstream.resilience import Resilience
from app.upstream.vectors.qdrant_edge import QdrantEdge


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything that a question needs, opened."""

    reader: Reader
    embedder: Embedder
    vectors: VectorStore
    # The breakers and retries of those that are remote.
    resilience: Resilience | None = None


async def identity_of(reader: Reader, embedder: Embedder, settings: Settings) -> Identity:
    """What a calibrator for these parts and settings is fitted on."""
    return replace(
        await reader.identify(),
        embedder=embedder.name,
        collection=settings.vectors.collection,
        max_tokens=settings.reader.max_tokens,
        ks=settings.calibration.ks,
    )


@asynccontextmanager
async def open_parts(settings: Settings) -> AsyncIterator[Parts]:
    """Open all parts, slowest side by side, and close them in reverse order."""
    async with AsyncExitStack() as stack:
        resilience = resilience_of(settings)
        vectors = open_vectors(settings, resilience)
        stack.push_async_callback(vectors.close)
        try:
            async with asyncio.TaskGroup() as starting:
                embedder = starting.create_task(open_embedder(settings, stack, resilience))
                reader = starting.create_task(open_reader(settings, stack, resilience))
        except* FetchwiseError as failures:
            # The first tells what to mend; the other part was cancelled or will be met next.
            raise failures.exceptions[0] from None
        yield Parts(reader.result(), embedder.result(), vectors, resilience)


def resilience_of(settings: Settings) -> Resilience:
    """What the settings say about parts that fail."""
    return Resilience(
        failures=settings.faults.breaker_failures,
        retry_s=settings.faults.breaker_retry_s,
        retries=settings.faults.retries,
        at_once=settings.permits,
    )


def open_vectors(settings: Settings, resilience: Resilience) -> VectorStore:
    """The embedded store, or a client of the server; neither connects yet."""
    if settings.vectors.backend == "embedded":
        return QdrantEdge(settings.server.data_dir / "vectors")
    # Imported here: the client takes over a second to import, and the embedded default does not need it.
    from app.upstream.vectors.qdrant import Qdrant  # noqa: PLC0415

    key = settings.vectors.api_key.get_secret_value() if settings.vectors.api_key else None
    return Qdrant(
        settings.vectors.backend,
        key,
        link=resilience.link("vectors"),
        grpc=settings.vectors.grpc,
        timeout_s=settings.vectors.timeout_s,
    )


async def open_embedder(settings: Settings, stack: AsyncExitStack, resilience: Resilience) -> Embedder:
    """Load the local model, or greet the remote one."""
    embedder: SentenceTransformerEmbedder | OpenAIEmbedder
    if settings.embedder.backend.startswith(("http://", "https://")):
        if settings.embedder.model is None:
            raise ConfigurationError("a remote embedder needs FETCHWISE_EMBEDDER_MODEL")
        key = settings.embedder.api_key.get_secret_value() if settings.embedder.api_key else None
        embedder = OpenAIEmbedder(
            settings.embedder.backend,
            settings.embedder.model,
            link=resilience.link("embedder"),
            api_key=key,
            query_prefix=settings.embedder.query_prefix,
            timeout_s=settings.embedder.timeout_s,
        )
    else:
        embedder = SentenceTransformerEmbedder(
            settings.embedder.backend, query_prefix=settings.embedder.query_prefix, threads=settings.embedder.threads
        )
    stack.push_async_callback(embedder.close)
    await embedder.start()
    return embedder


async def open_reader(settings: Settings, stack: AsyncExitStack, resilience: Resilience) -> Reader:
    """Start the reader where it is ours to start, and open a client to it, or to each of its replicas."""
    server = await _reader_server(settings)
    if server is None:
        urls, model = settings.reader.urls, settings.reader.model
    else:
        stack.push_async_callback(server.stop)
        urls, model = (await server.start(),), settings.reader.model or MODEL
    if model is None or not urls or not all(url.startswith(("http://", "https://")) for url in urls):
        raise ConfigurationError(
            "FETCHWISE_READER is `embedded`, `vllm` or http(s) URLs; all but the first need FETCHWISE_READER_MODEL"
        )
    if len(set(urls)) < len(urls):
        raise ConfigurationError("FETCHWISE_READER names the same URL twice")
    # By number and not by address: askers are told which of them failed.
    clients = {f"reader {number}": _reader_client(settings, url, model) for number, url in enumerate(urls, start=1)}
    reader = BalancedReader(clients, resilience)
    stack.push_async_callback(reader.close)
    if len(urls) > 1:
        await reader.start()
    return reader


def _reader_client(settings: Settings, url: str, model: str) -> OpenAIReader:
    return OpenAIReader(
        url,
        model,
        prompts=load_prompts(settings.reader.prompts),
        api_key=settings.reader.api_key.get_secret_value() if settings.reader.api_key else None,
        timeout_s=settings.reader.timeout_s,
        max_connections=settings.limits.max_in_flight * 2,
        quantisation=settings.reader.quantisation,
        chat_template_kwargs={"enable_thinking": False} if settings.reader.thinking == "off" else None,
    )


async def _reader_server(settings: Settings) -> ChildServer | None:
    log = settings.server.data_dir / "reader.log"
    if settings.reader.backend == "embedded":
        model = await asyncio.to_thread(embedded_model, settings.server.data_dir / "models")
        return llama_server(
            model, log_path=log, threads=settings.reader.threads or os.cpu_count() or 1, slots=settings.reader.slots
        )
    if settings.reader.backend == "vllm":
        if settings.reader.model is None:
            raise ConfigurationError("FETCHWISE_READER=vllm needs FETCHWISE_READER_MODEL: which model to serve")
        return vllm_server(settings.reader.model, log_path=log, extra_args=shlex.split(settings.reader.vllm_args))
    return None


def open_decision_store(settings: Settings) -> SqlDecisionStore | None:
    """The decision log's database, made if it is new; None where none is kept. Blocks."""
    if settings.decision_log_at is None:
        return None
    return SqlDecisionStore.open(settings.decision_log_at, texts=settings.log.texts)


@asynccontextmanager
async def open_decision_log(settings: Settings, metrics: LogMetrics) -> AsyncIterator[DecisionLog | None]:
    """Keep decisions and feedback while this is open; what waits is written at the end."""
    store = await asyncio.to_thread(open_decision_store, settings)
    if store is None:
        yield None
        return
    log = DecisionLog(
        store,
        capacity=settings.log.buffer,
        keep_days=settings.log.retention_days,
        metrics=metrics,
    )
    log.start()
    try:
        yield log
    finally:
        await log.close()


def keys_required(settings: Settings) -> bool:
    """Whether nobody may be served without a key: the operator names a file, or others can reach the address."""
    if settings.access.keys is not None:
        return True
    return not settings.access.open_to_anyone and reachable_from_outside(settings.server.host)


def reachable_from_outside(host: str) -> bool:
    """Whether an address to listen on is open to other machines; in doubt it is. Blocks where it is a name."""
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(host or None, None, flags=socket.AI_PASSIVE)}
    except OSError:
        return True
    return not all(_loopback(ip_address(one.partition("%")[0])) for one in found)


def _loopback(address: IPv4Address | IPv6Address) -> bool:
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


def key_file(where: Path | str) -> KeyFile:
    """The keys in the file at this path, which only its owner may read, or in the database with this URL. Blocks."""
    if "://" in str(where):
        return KeyFile(open_documents(where, "keys", setting="FETCHWISE_KEYS"))
    path = Path(where)
    return KeyFile(FolderDocuments(path.parent, private=True), path.name)


async def open_keys(settings: Settings) -> KeyStore:
    """The keys that the settings name, read once."""
    required = await asyncio.to_thread(keys_required, settings)
    keys = KeyStore(await asyncio.to_thread(key_file, settings.keys_at), required=required)
    await keys.open()
    return keys


@asynccontextmanager
async def open_fleet_rates(settings: Settings, rates: SharedRates) -> AsyncIterator[FleetRates | None]:
    """Exchange rates through the database that the keys are in; None where they are in a file."""
    where = str(settings.keys_at)
    if not where.startswith("postgresql"):
        yield None
        return
    fleet = await asyncio.to_thread(FleetRates, rates, where)
    try:
        yield fleet
    finally:
        fleet.close()


def load_prompts(path: Path | None) -> Prompts:
    """The built-in templates, or the operator's own."""
    if path is None:
        return DEFAULT
    try:
        return Prompts(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise ConfigurationError(
            f"FETCHWISE_PROMPTS={path}: must be JSON with closed_book and open_book: {error}"
        ) from error


def mandatory_rules(settings: Settings) -> Mandatory:
    """The operator's words for questions that must be answered from passages; none where there is no file of them."""
    path = settings.calibration.mandatory_retrieval
    if path is None:
        return Mandatory({})
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return compile_rules(line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"FETCHWISE_MANDATORY_RETRIEVAL={path} cannot be used: {error}") from error
