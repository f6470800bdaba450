"""uvicorn's HTTP protocol with two timeouts: for a request to arrive, and for answers to end during shutdown.

uvicorn waits forever for the head and the body of a request, and cuts off answers without a response. None of this
runs while a complete request is being answered.
"""

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from app.api.http.errors import RETRY_AFTER_S, problem
from app.settings import Settings

logger = logging.getLogger(__name__)

# The parser has no limit; proxies usually allow less.
MAX_HEAD_BYTES = 65_536
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
            http=TimeoutProtocol,
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=math.ceil(settings.limits.shutdown_timeout_s) + _AFTER_S,
        )
        self.receive_timeout_s = settings.limits.receive_timeout_s
        self.shutdown_timeout_s = settings.limits.shutdown_timeout_s


class TimeoutProtocol(HttpToolsProtocol):
    """Closes a connection if its next request does not arrive in time, or its answer takes too long during shutdown."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        assert isinstance(config, ServerConfig)
        self._receive_timeout_s = config.receive_timeout_s
        self._shutdown_timeout_s = config.shutdown_timeout_s
        self._incoming: asyncio.TimerHandle | None = None
        self._stopping: asyncio.TimerHandle | None = None
        # Bytes of a head that is not complete yet.
        self._head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timeout for the first request."""
        super().connection_made(transport)
        self._incoming = self.loop.call_later(self._receive_timeout_s, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timeouts."""
        for timer in (self._incoming, self._stopping):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse the data; the timeout runs until the request is complete."""
        super().data_received(data)
        cycle = self.cycle
        if cycle is not None and not cycle.more_body and not cycle.response_complete:
            self._head_bytes = 0
            if self._incoming is not None:
                self._incoming.cancel()
                self._incoming = None
        elif not self.transport.is_closing():
            self._more_to_come(len(data))

    def _more_to_come(self, received: int) -> None:
        if self._incoming is None:
            self._incoming = self.loop.call_later(self._receive_timeout_s, self._too_slow)
        # The parser makes a new scope for each head, and a cycle for each head that is complete.
        in_the_head = self.cycle is None or self.cycle.scope is not self.scope
        self._head_bytes = self._head_bytes + received if in_the_head else 0
        if self._head_bytes > MAX_HEAD_BYTES:
            self._answer_and_close(431, "head_too_large", f"the headers exceed {MAX_HEAD_BYTES} bytes: send fewer")

    def _too_slow(self) -> None:
        if self._head_bytes or (self.cycle is not None and not self.cycle.response_started):
            limit = f"{self._receive_timeout_s:g} s"
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
        """Answer a request that is not valid HTTP."""
        self._answer_and_close(400, "invalid_request", msg)

    def _answer_and_close(self, status: int, kind: str, message: str) -> None:
        """Answer instead of the application, unless its response has started. The application sees a disconnect."""
        cycle = self.cycle
        answering = cycle is not None and not cycle.response_complete
        if not (answering and cycle.response_started):
            headers = {"connection": "close"} | ({"retry-after": str(RETRY_AFTER_S)} if status == 503 else {})
            reply = problem(status, kind, message, path=self._path(), headers=headers)
            lines = [name + b": " + value for name, value in (*self.server_state.default_headers, *reply.raw_headers)]
            head = STATUS_LINE[reply.status_code] + b"\r\n".join([*lines, b"", b""])
            self.transport.write(head + bytes(reply.body))
        if answering:
            cycle.disconnected = True
            cycle.message_event.set()
        self.transport.close()

    def _path(self) -> str:
        """The requested path, if it has arrived: it decides the shape of an error."""
        asked = cast("dict[str, Any] | None", self.scope)
        return asked.get("path", "") if asked else ""
