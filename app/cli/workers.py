"""Several processes on one address: started, watched and replaced by uvicorn, and counted as one gateway."""

import logging
import multiprocessing
import os
import signal
import socket
import tempfile
import threading
from functools import partial
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from prometheus_client.multiprocess import mark_process_dead
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import Multiprocess
from uvicorn.supervisors.multiprocess import Process

from app.cli.console import log_to_stderr
from app.cli.http_protocol import ServerConfig
from app.errors import ConfigurationError
from app.main import Shared, create_app
from app.observers.exposition import SHARED_VARIABLE
from app.processes import spare_the_collector
from app.settings import Settings

logger = logging.getLogger(__name__)

# How long a restart (SIGHUP) waits for a new worker to be ready before it keeps the old one.
_STARTUP_S = 60


def check_workers(settings: Settings) -> None:
    """Refuse several workers where a part lives inside one of them."""
    if settings.workers == 1:
        return
    inside = [
        f"FETCHWISE_{name.upper()}={value}"
        for name, value in (("reader", settings.reader), ("vectors", settings.vectors))
        if not value.startswith(("http://", "https://"))
    ]
    if inside:
        raise ConfigurationError(
            f"{settings.workers} workers need a remote reader and remote vectors, which all of them can share: give "
            f"URLs instead of {' and '.join(inside)}, or leave FETCHWISE_WORKERS at 1"
        )


def run_workers(settings: Settings, listener: socket.socket) -> None:
    """Answer in several processes until told to stop; nothing is left of them then."""
    with tempfile.TemporaryDirectory(prefix="fetchwise-workers-") as directory:
        shared = Shared(
            metrics=Path(directory, "metrics"), traffic=Path(directory, "traffic"), limits=Path(directory, "limits")
        )
        shared.metrics.mkdir()
        # For the workers, which inherit it: the library takes it from nowhere else.
        os.environ[SHARED_VARIABLE] = str(shared.metrics)
        config = ServerConfig(
            partial(worker, settings, shared),
            settings,
            factory=True,
            workers=settings.workers,
            timeout_worker_healthcheck=_STARTUP_S,
        )
        supervisor = _Supervisor(config, [listener], shared)
        supervisor.run()
    if any(process.exitcode == STARTUP_FAILURE for process in supervisor.processes):
        raise ConfigurationError("the workers did not start: the lines above say why")


def worker(settings: Settings, shared: Shared) -> FastAPI:
    """The application of one worker, made inside it."""
    log_to_stderr(settings.log_level, settings.log_format, log_questions=settings.log_questions)
    threading.Thread(target=_stop_with_supervisor, name="watch the supervisor", daemon=True).start()
    application = create_app(settings, shared=shared)
    spare_the_collector()
    return application


def _stop_with_supervisor() -> None:
    """A supervisor that was killed cannot stop its workers: they stop by themselves."""
    supervisor = multiprocessing.parent_process()
    if supervisor is not None:
        supervisor.join()
        logger.warning("the supervisor of the workers is gone: stopping")
        os.kill(os.getpid(), signal.SIGTERM)


class _Supervisor(Multiprocess):
    """Replaces workers that have ended, and takes them out of the sums of gauges, such as questions under way."""

    def __init__(self, config: uvicorn.Config, sockets: list[socket.socket], shared: Shared) -> None:
        super().__init__(config, sockets)
        self._metrics = shared.metrics
        self._known: set[int] = set()

    def terminate_all(self) -> None:
        """Stop listening first: who comes now is refused at once, and does not wait for a worker in vain."""
        for listener in self.sockets:
            listener.close()
        super().terminate_all()

    def keep_subprocess_alive(self) -> None:
        """Look at the processes alone: uvicorn's own way waits for each to answer, and hears no Ctrl-C meanwhile."""
        for place, process in enumerate(self.processes):
            if process.process.is_alive():
                continue
            process.join()
            if process.exitcode == STARTUP_FAILURE:
                # The next one would fail in the same way.
                self.should_exit.set()
                return
            logger.warning("worker %s ended with %s: starting another", process.pid, process.exitcode)
            self.processes[place] = Process(self.config, self.sockets)
            self.processes[place].start()
        running = {process.pid for process in self.processes if process.pid is not None}
        for gone in self._known - running:
            mark_process_dead(gone, str(self._metrics))  # type: ignore[no-untyped-call]
        self._known = running
