"""Runs one server in a child process: starts it, waits until it is ready, restarts it when it dies, always stops it.

The server listens on a Unix socket in a folder that only this user may open, and on no port. A port on loopback would
be open to every user and browser of the machine, past the gateway's keys and limits.

The child runs under `child_guard`, which stops the server when the gateway ends, even by kill -9. The usual solution,
PR_SET_PDEATHSIG in a preexec_fn, fails in three ways: it runs Python in a fork of a process with threads, it fires when
the *thread* that forked ends, and it does not reach the server's own children.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import tempfile
from asyncio.subprocess import DEVNULL, STDOUT, Process
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

import aiohttp

from app.errors import UpstreamUnavailable

logger = logging.getLogger(__name__)

HEALTH_POLL_S = 0.1
HEALTH_TIMEOUT_S = 2.0
LOG_LIMIT_BYTES = 10_000_000
TAIL_LINES = 20
TAIL_BYTES = 8192


@dataclass(eq=False)
class ChildServer:
    """Keeps one HTTP server running on a Unix socket that stays the same across restarts.

    `command` makes the command line for the socket's path. `env` is added to the inherited environment, from which the
    gateway's own settings, and so its secrets, are removed. `health_path` answers 200 once the server can serve.
    """

    name: str
    command: Callable[[str], Sequence[str]]
    _: KW_ONLY
    health_path: str
    log_path: Path
    env: Mapping[str, str] = field(default_factory=dict)
    ready_timeout_s: float = 60
    grace_s: float = 10
    backoff_s: float = 0.5
    max_backoff_s: float = 30
    stable_s: float = 60
    _folder: "tempfile.TemporaryDirectory[str] | None" = field(default=None, init=False)
    _process: Process | None = field(default=None, init=False)
    _watcher: asyncio.Task[None] | None = field(default=None, init=False)
    _log_start: int = field(default=0, init=False)

    @property
    def url(self) -> str:
        """The base URL, as `HttpClient` accepts it; it stays the same while the server restarts."""
        return f"unix:{self._socket}"

    @property
    def _socket(self) -> str:
        if self._folder is None:
            raise UpstreamUnavailable("reader", f"{self.name} is not started")
        return f"{self._folder.name}/http.sock"

    async def start(self) -> str:
        """Start the server, wait until it is ready, then watch it; returns the base URL.

        Raises UpstreamUnavailable with the last lines of its log if it ends or times out before it is ready.
        """
        if self._watcher is not None:
            return self.url
        # Not in the data directory: a socket's path has at most 107 characters, and some volumes allow no sockets.
        self._folder = tempfile.TemporaryDirectory(prefix="fetchwise-")
        try:
            await self._launch()
        except BaseException:
            self._forget_folder()
            raise
        self._watcher = asyncio.create_task(self._watch(), name=f"watch {self.name}")
        return self.url

    async def stop(self) -> None:
        """Stop the server and everything it started, first by SIGTERM; idempotent."""
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)
        await self._end()
        self._forget_folder()

    def log_tail(self) -> str:
        """The last lines that the server logged since its last start."""
        with contextlib.suppress(OSError), self.log_path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_start, size - TAIL_BYTES))
            return "\n".join(log.read().decode(errors="replace").splitlines()[-TAIL_LINES:])
        return ""

    def _free_socket(self) -> str:
        """The socket's path. A server that was killed leaves its socket there, and the next could not bind it."""
        Path(self._socket).unlink(missing_ok=True)
        return self._socket

    def _forget_folder(self) -> None:
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.cleanup()

    async def _watch(self) -> None:
        """Restart the server whenever it ends, with exponential backoff while it ends soon."""
        clock = asyncio.get_running_loop().time
        pause = self.backoff_s
        while True:
            ready_at = clock()
            if self._process is not None:
                code = await self._process.wait()
                logger.warning("%s ended with exit code %s; its last lines:\n%s", self.name, code, self.log_tail())
                await self._end()
            if clock() - ready_at >= self.stable_s:
                pause = self.backoff_s
            logger.warning("restarting %s in %.1f s", self.name, pause)
            await asyncio.sleep(pause)
            pause = min(pause * 2, self.max_backoff_s)
            try:
                await self._launch()
            except (UpstreamUnavailable, OSError) as error:
                # Out of memory, processes or disk may be temporary, like a server that fails to start.
                logger.warning("%s could not be restarted: %s", self.name, error)
            else:
                logger.info("%s is ready again", self.name)

    async def _launch(self) -> None:
        """Start the process and return once it is healthy; leave no process on failure."""
        try:
            self._process = await self._spawn()
            await self._until_healthy(self._process)
        except BaseException:
            await self._end()
            raise

    async def _spawn(self) -> Process:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("FETCHWISE_")}
        guard = [sys.executable, "-I", "-S", str(Path(__file__).with_name("child_guard.py")), str(os.getpid())]
        log = self._open_log()
        try:
            return await asyncio.create_subprocess_exec(
                *guard,
                *self.command(self._free_socket()),
                stdin=DEVNULL,
                stdout=log,
                stderr=STDOUT,
                env={**inherited, **self.env},
                start_new_session=True,
            )
        finally:
            os.close(log)

    async def _until_healthy(self, process: Process) -> None:
        try:
            connector = aiohttp.UnixConnector(self._socket)
            async with asyncio.timeout(self.ready_timeout_s), aiohttp.ClientSession(connector=connector) as http:
                while process.returncode is None:
                    if await self._is_healthy(http):
                        return
                    await asyncio.sleep(HEALTH_POLL_S)
        except TimeoutError:
            problem = f"was not ready within {self.ready_timeout_s:g} s"
        else:
            problem = f"ended with exit code {process.returncode} before it was ready"
        raise UpstreamUnavailable(
            "reader", f"{self.name} {problem}; the last lines of {self.log_path}:\n{self.log_tail()}"
        )

    async def _is_healthy(self, http: aiohttp.ClientSession) -> bool:
        timeout = aiohttp.ClientTimeout(total=HEALTH_TIMEOUT_S)
        try:
            async with http.get("http://localhost" + self.health_path, timeout=timeout) as reply:
                return reply.status == 200
        except (aiohttp.ClientError, OSError):
            return False

    async def _end(self) -> None:
        """Stop the process group, if there is one, and wait until it is gone."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(self.grace_s):
                await process.wait()
        except TimeoutError:
            logger.warning("%s did not end within %g s of SIGTERM: killing it", self.name, self.grace_s)
        finally:
            # Always: the server's own children may still run after SIGTERM, or after the guard was killed.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        await process.wait()

    def _open_log(self) -> int:
        """Open the log for appending; rotate it first if it is large."""
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            if self.log_path.stat().st_size > LOG_LIMIT_BYTES:
                self.log_path.replace(self.log_path.with_name(self.log_path.name + ".1"))
        log = os.open(self.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._log_start = os.fstat(log).st_size
        return log
