"""`fetchwise serve`: open the parts, fill the collection from FETCHWISE_SEED, and listen.

Several workers share one address. uvicorn starts, watches and replaces them; metrics and limits are those of all
workers together.

SIGTERM ── `/readyz` is 503, connections end ── FETCHWISE_DRAIN_S, or another SIGTERM ──► stop listening, finish, exit
SIGINT (Ctrl-C) ────────────────────────────────────────────────────────────────────────► the same, at once
"""

import asyncio
import contextlib
import gc
import logging
import math
import multiprocessing
import os
import resource
import signal
import socket
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
import uvicorn
from fastapi import FastAPI
from uvicorn.supervisors import Multiprocess
from uvicorn.supervisors.multiprocess import Process

from app.access import keys_required
from app.api.http.protocol import ServerConfig
from app.cli.console import app, err, log_to_stderr, opened_parts
from app.cli.corpus import fill
from app.errors import (
    ConfigurationError,
    DataError,
    StorageError,
    StorageUnavailable,
    UnknownCollection,
    UpstreamError,
)
from app.settings import Settings, read_settings
from app.storage import open_rows
from app.telemetry.gauges import SHARED_VARIABLE, reserve
from app.upstream.parts import Parts, open_parts
from app.wiring.gateway import create_app, key_file, metrics_folder

logger = logging.getLogger(__name__)

# A supervisor sends this to its workers before it stops them.
_DRAIN = signal.SIGUSR1
# Pause before something that failed at the start is tried again; it doubles each time.
_PAUSE_S, _MAX_PAUSE_S = 1.0, 30.0
# How long a restart (SIGHUP) waits for a new worker to be ready before it keeps the old one.
_STARTUP_S = 60
# How long workers may take to stop after their running requests: they write the log and send the last traces.
_CLOSING_S = 20.0
# Open files beside the connections of clients: connections to upstreams, databases, libraries.
_OTHER_FILES = 1024


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on. Default: FETCHWISE_HOST.")] = None,
    port: Annotated[
        int | None, typer.Option(help="Port to listen on; 0 picks a free one. Default: FETCHWISE_PORT.")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder for all data. Default: FETCHWISE_DATA_DIR.")] = None,
    workers: Annotated[int | None, typer.Option(help="Number of worker processes. Default: FETCHWISE_WORKERS.")] = None,
) -> None:
    """Run the gateway until Ctrl-C. Every setting is a FETCHWISE_* variable; docs/operate/settings.md lists them."""
    given = {"host": host, "port": port, "data_dir": data_dir, "workers": workers}
    settings = read_settings(**{name: value for name, value in given.items() if value is not None})
    log_to_stderr(settings.server.log_level, settings.server.log_format, log_questions=settings.server.log_questions)
    check_workers(settings)
    check_keys(settings)
    allow_connections(settings.limits.max_connections)
    # Bind before anything slow is loaded, so that a port in use is reported at once.
    with contextlib.closing(_listen(settings.server.host, settings.server.port)) as listener:
        _try_decision_log(settings)
        # uvicorn chooses the fastest loop only if it makes the loop itself.
        with asyncio.Runner(loop_factory=uvicorn.Config("", log_config=None).get_loop_factory()) as runner:
            runner.run(_serve(settings, listener))
        if settings.server.workers > 1:
            run_workers(settings, listener)


async def _serve(settings: Settings, listener: socket.socket) -> None:
    async with opened_parts(settings) as parts:
        seeded = await _seeded(settings, parts)
        host, port = listener.getsockname()[:2]
        several = f" with {settings.server.workers} workers" if settings.server.workers > 1 else ""
        err.print(
            f"[bold]Fetchwise[/] answers on http://{host}:{port}{several}  (/dashboard, /docs; Ctrl-C stops)",
            soft_wrap=True,
        )
        if settings.server.workers == 1:
            seeding = None if seeded else asyncio.create_task(_seed_later(settings, parts))
            await _answer_until_stopped(settings, parts, listener)
            if seeding is not None:
                seeding.cancel()
            return
    # Workers open their own parts. These were opened to report errors in one sentence, and to seed once.
    if not seeded:
        threading.Thread(target=lambda: asyncio.run(_seed_elsewhere(settings)), name="seed", daemon=True).start()


async def _answer_until_stopped(settings: Settings, parts: Parts, listener: socket.socket) -> None:
    application = create_app(settings, parts_opener=lambda _: contextlib.nullcontext(parts))
    server = _Server(application, settings)
    _get_ready(application)
    await server.serve(sockets=[listener])
    if not server.started:
        raise ConfigurationError("the gateway did not start: see the log lines above")


def check_keys(settings: Settings) -> None:
    """Refuse to serve other machines without keys, unless the operator confirms it in the settings."""
    try:
        file = key_file(settings.keys_at)
        if file.read() is not None:
            return
    except StorageUnavailable:
        # Every request is refused until they can be read.
        return
    except (DataError, StorageError) as error:
        raise ConfigurationError(str(error)) from error
    if not keys_required(settings.access, settings.server.host):
        return
    if settings.access.keys is not None:
        raise ConfigurationError(f"FETCHWISE_KEYS: {file.where} does not exist: run `fetchwise keys create NAME`")
    raise ConfigurationError(
        f"other machines can reach {settings.server.host}, and there are no keys: run `fetchwise keys create NAME`, or "
        "listen on 127.0.0.1, or allow it: FETCHWISE_OPEN_TO_ANYONE='anyone may ask and see everything'"
    )


def allow_connections(count: int) -> None:
    """Raise the limit of open files of this process and its workers, if it is too low for so many connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited, wanted = resource.RLIM_INFINITY, count + _OTHER_FILES
    if soft == unlimited or soft >= wanted:
        return
    if hard not in {unlimited, max(hard, wanted)}:
        logger.warning("%d files can be open: allow %d, or lower FETCHWISE_MAX_CONNECTIONS", hard, wanted)
        wanted = hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _try_decision_log(settings: Settings) -> None:
    """Open the decision log before anything slow is loaded, so that an error is reported at once."""
    store = open_rows(settings)
    if store is not None:
        store.close()


async def _seeded(settings: Settings, parts: Parts) -> bool:
    """Fill a collection that does not exist yet, or that an earlier start left incomplete; False if that failed."""
    seed, collection = settings.vectors.seed, settings.vectors.collection
    if seed is None:
        return True
    unfinished = settings.server.data_dir / f"seeding-{collection}"
    try:
        try:
            await parts.vectors.count(collection)
        except UnknownCollection:
            settings.server.data_dir.mkdir(parents=True, exist_ok=True)
            unfinished.touch()
        if unfinished.exists():
            report = await fill([seed], collection, parts.embedder, parts.vectors)
            err.print(f"{report.added} passages of {seed} added to {collection}, {len(report.skipped)} skipped")
            unfinished.unlink()
    except UpstreamError as error:
        logger.warning("%s is not in %s yet, trying again later: %s", seed, collection, error)
        return False
    return True


async def _seed_later(settings: Settings, parts: Parts) -> None:
    """Try again until it works, while the gateway serves."""
    pause_s = _PAUSE_S
    while not await _seeded(settings, parts):
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _MAX_PAUSE_S)


async def _seed_elsewhere(settings: Settings) -> None:
    """The same beside workers, with parts of its own."""
    async with open_parts(settings) as parts:
        await _seed_later(settings, parts)


class _Server(uvicorn.Server):
    """Drains before it stops.

    uvicorn raises a caught Ctrl-C again after it has stopped, which would interrupt the closing of the parts.
    """

    def __init__(self, application: FastAPI, settings: Settings) -> None:
        super().__init__(ServerConfig(application, settings))
        self._application = application
        self._drain_s = settings.limits.drain_s

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """On SIGINT and SIGTERM, only request a stop."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self.handle_exit, signal.SIGINT, None)
        loop.add_signal_handler(signal.SIGTERM, self._drain)
        yield

    def _drain(self) -> None:
        wait_s = self._drain_s if _drain(self._application) else 0.0
        asyncio.get_running_loop().call_later(wait_s, self.handle_exit, signal.SIGTERM, None)


def _drain(application: FastAPI) -> bool:
    """Tell load balancers and callers to go elsewhere; False if they know, or if the gateway has not opened yet."""
    gateway = getattr(application.state, "gateway", None)
    if gateway is None or gateway.snapshots.draining:
        return False
    gateway.snapshots.draining = True
    logger.info("draining: /readyz is 503 now, and the gateway stops soon")
    return True


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen on {host}:{port} ({error.strerror}): set FETCHWISE_PORT or FETCHWISE_HOST"
        ) from error
    listener.set_inheritable(False)
    return listener


def check_workers(settings: Settings) -> None:
    """Refuse several workers if a part runs inside a worker."""
    if settings.server.workers == 1:
        return
    inside = [
        f"FETCHWISE_{name.upper()}={value}"
        for name, value in (("reader", settings.reader.backend), ("vectors", settings.vectors.backend))
        if not value.startswith(("http://", "https://", "unix:"))
    ]
    if inside:
        raise ConfigurationError(
            f"{settings.server.workers} workers need a reader and a vector store that they can share: "
            f"set URLs instead of {' and '.join(inside)}, or set FETCHWISE_WORKERS=1"
        )


def run_workers(settings: Settings, listener: socket.socket) -> None:
    """Serve with several processes until a signal stops them; then remove their shared files."""
    with tempfile.TemporaryDirectory(prefix="fetchwise-workers-") as directory:
        shared = Path(directory)
        metrics_folder(shared).mkdir()
        # Workers inherit it; prometheus_client reads only this variable.
        os.environ[SHARED_VARIABLE] = str(metrics_folder(shared))
        config = ServerConfig(
            partial(worker, settings, shared),
            settings,
            factory=True,
            workers=settings.server.workers,
            timeout_worker_healthcheck=_STARTUP_S,
        )
        stop_s = settings.limits.shutdown_timeout_s + _CLOSING_S
        supervisor = _Supervisor(config, [listener], shared, settings.limits.drain_s, stop_s)
        supervisor.run()
    if supervisor.failed:
        raise ConfigurationError("the workers did not start: see the log lines above")


def worker(settings: Settings, shared: Path) -> FastAPI:
    """Build the application of one worker, inside the worker."""
    log_to_stderr(settings.server.log_level, settings.server.log_format, log_questions=settings.server.log_questions)
    threading.Thread(target=_stop_with_supervisor, name="watch the supervisor", daemon=True).start()
    application = create_app(settings, shared=shared)

    def drain(*_: object) -> None:
        if not _drain(application):
            signal.raise_signal(signal.SIGTERM)

    opened = application.router.lifespan_context

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[Any]:
        async with opened(app) as state:
            reserve(metrics_folder(shared))
            started_file(shared, os.getpid()).touch()
            yield state

    application.router.lifespan_context = lifespan
    signal.signal(_DRAIN, drain)
    _get_ready(application)
    return application


def started_file(shared: Path, pid: int | str | None) -> Path:
    """A worker that has started leaves this file, by which the supervisor tells its end from a failed start."""
    return shared / f"started-{pid}"


def _stop_with_supervisor() -> None:
    """Stop this worker when the supervisor is gone: a killed supervisor cannot stop its workers."""
    supervisor = multiprocessing.parent_process()
    if supervisor is not None:
        supervisor.join()
        logger.warning("the supervisor of the workers is gone, stopping this worker")
        os.kill(os.getpid(), signal.SIGTERM)


class _Supervisor(Multiprocess):
    """Replaces workers that have ended, and removes them from sums of gauges such as questions in flight."""

    def __init__(
        self, config: uvicorn.Config, sockets: list[socket.socket], shared: Path, drain_s: float, stop_s: float
    ) -> None:
        super().__init__(config, sockets)
        # Whether no worker ever started.
        self.failed = False
        self._shared = shared
        self._drain_s, self._stop_s = drain_s, stop_s
        # When to stop, and when to start a worker in place of one that failed to start; on the monotonic clock.
        self._stop_at = math.inf
        self._retry_at = 0.0
        self._pause_s = _PAUSE_S

    def handle_term(self) -> None:
        """Let the workers drain, then stop them; a second SIGTERM stops them at once."""
        if self._stop_at < math.inf:
            self.should_exit.set()
            return
        self._stop_at = time.monotonic() + self._drain_s
        for process in self.processes:
            if process.pid is not None and process.process.is_alive():
                os.kill(process.pid, _DRAIN)

    def handle_hup(self) -> None:
        """Replace the workers, unless they stop anyway."""
        if self._stop_at == math.inf:
            super().handle_hup()

    def terminate_all(self) -> None:
        """Stop listening first, so that new connections are refused at once instead of waiting for a worker."""
        for listener in self.sockets:
            listener.close()
        super().terminate_all()

    def join_all(self) -> None:
        """Kill workers that do not stop in time: a frozen one would keep the gateway for ever."""
        until = time.monotonic() + self._stop_s
        for process in self.processes:
            process.process.join(max(0.0, until - time.monotonic()))
            if process.process.is_alive():
                logger.warning("worker %s did not stop in time and is killed", process.pid)
                process.kill()
                process.join()

    def keep_subprocess_alive(self) -> None:
        """Check only whether the processes are alive: uvicorn's own check waits for replies and delays Ctrl-C."""
        if time.monotonic() >= self._stop_at:
            self.should_exit.set()
        if self._stop_at < math.inf or self.should_exit.is_set():
            return
        started = any(self._shared.glob("started-*"))
        for place, process in enumerate(self.processes):
            if not process.process.is_alive():
                self._replace(place, process, serving=started)
        if not started and all(process.exitcode is not None for process in self.processes):
            # New workers would fail in the same way.
            self.failed = True
            self.should_exit.set()
        self._clean()

    def _replace(self, place: int, ended: Process, *, serving: bool) -> None:
        """Start another worker; after one that failed to start only if others serve, and not at once."""
        now = time.monotonic()
        if started_file(self._shared, ended.pid).exists():
            self._pause_s = _PAUSE_S
        elif not serving or now < self._retry_at:
            return
        else:
            self._retry_at, self._pause_s = now + self._pause_s, min(2 * self._pause_s, _MAX_PAUSE_S)
        logger.warning("worker %s ended with exit code %s, starting another", ended.pid, ended.exitcode)
        self.processes[place] = Process(self.config, self.sockets)
        self.processes[place].start()

    def _clean(self) -> None:
        """Remove the gauges of workers that have ended, and every metric of those that never started.

        Counts of a worker that has served stay: counters must not fall.
        """
        running = {str(process.pid) for process in self.processes}
        for file in metrics_folder(self._shared).glob("*.db"):
            pid = file.stem.rpartition("_")[2]
            counted = not file.name.startswith("gauge_live") and started_file(self._shared, pid).exists()
            if pid not in running and not counted:
                file.unlink(missing_ok=True)


def _get_ready(application: FastAPI) -> None:
    """Do once, before serving, what would delay a request.

    The OpenAPI document takes half a second to make. Objects that exist now are excluded from garbage collection, which
    also happens less often: they stay, and scanning them took a quarter of the time under load.
    """
    application.openapi()
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
