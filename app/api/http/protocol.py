"""uvicorn's HTTP protocol with limits on what a client can cost.

uvicorn waits forever for a request to arrive and for its response to be read, queues any number of requests on a
connection, and cuts off answers at shutdown without a response. None of this runs while a complete request is being
answered.
"""

import asyncio
import logging
import math
import socket
import struct
from collections.abc import Callable
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from app.api.http.errors import RETRY_AFTER_S, problem
from app.settings import Settings
from app.telemetry.requests import HttpMetrics

logger = logging.getLogger(__name__)
# uvicorn warns of each invalid request, so any client could fill the log.
_errors = logging.getLogger("uvicorn.error.connections")
_errors.setLevel(logging.ERROR)

# The parser has no limit; proxies usually allow less.
MAX_HEAD_BYTES = 65_536
# Requests that may wait on a connection for the response to an earlier one. Common clients and proxies send none.
MAX_PIPELINED = 8
# SO_LINGER: on, for no time.
_RESET = struct.pack("ii", 1, 0)
# For cleanup after the last connection is closed.
_AFTER_S = 2


class ServerConfig(uvicorn.Config):
    """The uvicorn configuration of one process, or of each worker."""

    def __init__(
        self,
        app: Callable[..., Any],
        settings: Settings,
        *,
        factory: bool = False,
        workers: int = 1,
        timeout_worker_healthcheck: int = 5,
    ) -> None:
        super().__init__(
            app,
            factory=factory,
            workers=workers,
            timeout_worker_healthcheck=timeout_worker_healthcheck,
            http=LimitedProtocol,
            # There is none here, and the limits below are those of HTTP.
            ws="none",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=math.ceil(settings.limits.shutdown_timeout_s) + _AFTER_S,
        )
        self.client_timeout_s = settings.limits.client_timeout_s
        self.shutdown_timeout_s = settings.limits.shutdown_timeout_s
        self.max_connections = settings.limits.max_connections


class LimitedProtocol(HttpToolsProtocol):
    """Closes a connection that is too slow or asks for too much, and one of which there are too many."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        assert isinstance(config, ServerConfig)
        self.logger = _errors
        self._client_timeout_s = config.client_timeout_s
        self._shutdown_timeout_s = config.shutdown_timeout_s
        self._max_connections = config.max_connections
        self._incoming: asyncio.TimerHandle | None = None
        self._stopping: asyncio.TimerHandle | None = None
        self._reading: asyncio.TimerHandle | None = None
        # The request that is being answered; uvicorn's `cycle` is the last one that has arrived.
        self._running: RequestResponseCycle | None = None
        # The request whose response the client was not reading at the last check.
        self._unread: RequestResponseCycle | None = None
        # Bytes of a head that is not complete yet.
        self._head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timeout for the first request, or refuse the connection."""
        super().connection_made(transport)
        self._incoming = self.loop.call_later(self._client_timeout_s, self._too_slow)
        self._reading = self.loop.call_later(self._client_timeout_s, self._check_reading)
        if len(self.connections) > self._max_connections:
            self._answer_and_close(503, "too_many_connections", "the gateway has too many connections: try again later")

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timeouts, and tell the application."""
        for timer in (self._incoming, self._stopping, self._reading):
            if timer is not None:
                timer.cancel()
        self._disconnect()
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Callable[..., Any]) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_message_begin(self) -> None:
        """Refuse a request if too many wait already; an error in this callback stops the parser."""
        if len(self.pipeline) >= MAX_PIPELINED:
            raise ValueError("too many requests")
        super().on_message_begin()

    def data_received(self, data: bytes) -> None:
        """Parse the data; the timeout runs until the request is complete."""
        super().data_received(data)
        cycle = self.cycle
        if cycle is not None and not cycle.more_body and not cycle.response_complete:
            self._count_head(len(data))
            if self._incoming is not None:
                self._incoming.cancel()
                self._incoming = None
        elif not self.transport.is_closing():
            self._more_to_come(len(data))

    def _more_to_come(self, received: int) -> None:
        if self._incoming is None:
            self._incoming = self.loop.call_later(self._client_timeout_s, self._too_slow)
        self._count_head(received)

    def _count_head(self, received: int) -> None:
        # The parser makes a new scope for each head, and a cycle for each head that is complete.
        in_the_head = self.cycle is None or self.cycle.scope is not self.scope
        self._head_bytes = self._head_bytes + received if in_the_head else 0
        if self._head_bytes > MAX_HEAD_BYTES:
            self._answer_and_close(431, "head_too_large", f"the headers exceed {MAX_HEAD_BYTES} bytes: send fewer")

    def resume_writing(self) -> None:
        """The client reads."""
        self._unread = None
        super().resume_writing()

    def _check_reading(self) -> None:
        """Abort the connection if the client has not read the same response since the last check.

        Also after `close`, which waits until everything is read. A response counts if no more of it can be written, or
        nothing of it is left to write.
        """
        running = self._running
        stuck = running is not None and (self.flow.write_paused or running.response_complete)
        unread = running if stuck and self.transport.get_write_buffer_size() else None
        if unread is not None and unread is self._unread:
            # With a reset: else the system keeps what is not read, for as long as the client likes.
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.transport.abort()
            return
        self._unread = unread
        self._reading = self.loop.call_later(self._client_timeout_s, self._check_reading)

    def _too_slow(self) -> None:
        if self._head_bytes or (self.cycle is not None and not self.cycle.response_started):
            limit = f"{self._client_timeout_s:g} s"
            self._answer_and_close(408, "request_timeout", f"the request did not arrive within {limit}: send it again")
        else:
            # No request has begun, or it is answered already and its body is still arriving.
            self.transport.close()

    def shutdown(self) -> None:
        """Let a running answer end, if it does so in time; close an idle connection at once."""
        super().shutdown()
        if not self.transport.is_closing():
            self._stopping = self.loop.call_later(self._shutdown_timeout_s, self._stop)

    def _stop(self) -> None:
        logger.warning("cancelled a running answer: the gateway is stopping")
        self._answer_and_close(503, "stopping", "the gateway is stopping: send the request again")

    def send_400_response(self, msg: str) -> None:
        """Answer a request that is not valid HTTP, or one of too many."""
        if len(self.pipeline) >= MAX_PIPELINED:
            msg = f"more than {MAX_PIPELINED} requests wait on this connection: wait for responses"
        self._answer_and_close(400, "invalid_request", msg)

    def _answer_and_close(self, status: int, kind: str, message: str) -> None:
        """Answer instead of the application, unless its response has started. The application sees a disconnect."""
        if self._running is None or self._running.response_complete or not self._running.response_started:
            headers = {"connection": "close"} | ({"retry-after": str(RETRY_AFTER_S)} if status == 503 else {})
            reply = problem(status, kind, message, path=self._path(), headers=headers)
            # The application's lifespan provides it, if it runs.
            metrics: HttpMetrics | None = self.app_state.get("http_metrics")
            if metrics is not None:
                metrics.refused(self._path(), reply.status_code)
            lines = [name + b": " + value for name, value in (*self.server_state.default_headers, *reply.raw_headers)]
            head = STATUS_LINE[reply.status_code] + b"\r\n".join([*lines, b"", b""])
            self.transport.write(head + bytes(reply.body))
        self._disconnect()
        self.transport.close()

    def _disconnect(self) -> None:
        """Let the application see a disconnect, and forget requests that wait."""
        self.pipeline.clear()
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()

    def _path(self) -> str:
        """The requested path, if it has arrived: it decides the shape of an error."""
        asked = cast("dict[str, Any] | None", self.scope)
        return asked.get("path", "") if asked else ""
