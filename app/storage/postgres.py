"""Connections to PostgreSQL whose every call ends in time, directly or through a pooler such as PgBouncer.

Nothing here is a setting of the session: a pooler lends one session to several clients. So timeouts on the server are
those of a transaction, and statements are not prepared.
"""

import time
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen
from sqlalchemy import Connection, Engine, event, func, select

T = TypeVar("T")

# The URL may set its own.
CONNECT: dict[str, int | None] = {
    # Seconds.
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    # Milliseconds after which data without an acknowledgement is an error.
    "tcp_user_timeout": 10_000,
    # Never.
    "prepare_threshold": None,
}


# So that an error of the server arrives, if there is one.
_SLACK_S = 1.0


class TimedConnection(psycopg.Connection[Any]):
    """Closes itself if a call gets no reply within `reply_s`.

    TCP does not notice a server that hangs, or one behind a pooler that cannot be reached.
    """

    reply_s = 10.0

    def wait(self, gen: PQGen[T], *more: Any, **options: Any) -> T:  # noqa: ANN401 as psycopg defines it
        """Wait for a reply, for some time."""
        return super().wait(self._timed(gen), *more, **options)

    def _timed(self, gen: PQGen[T]) -> PQGen[T]:
        deadline = time.monotonic() + self.reply_s
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                # psycopg resumes it ten times a second, ready or not.
                if not ready and time.monotonic() > deadline:
                    self.pgconn.finish()
                    raise psycopg.OperationalError(f"no reply within {self.reply_s:g} s")
                wanted = gen.send(ready)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]


def limit_calls(engine: Engine, reply_s: float) -> None:
    """Let the server end a call after so long, and do so here if it does not."""
    in_ms = str(round(1000 * reply_s))
    # The server ends a transaction that a lost client left open: it would lock rows until TCP gives up, in hours.
    limits = select(
        func.set_config("statement_timeout", in_ms, True),  # noqa: FBT003 SQL: until the transaction ends
        func.set_config("idle_in_transaction_session_timeout", in_ms, True),  # noqa: FBT003
    )

    @event.listens_for(engine, "do_connect")
    def connect(_: object, __: object, arguments: list[Any], options: dict[str, Any]) -> TimedConnection:
        connection = TimedConnection.connect(*arguments, **options)
        connection.reply_s = reply_s + _SLACK_S
        return connection

    @event.listens_for(engine, "begin")
    def began(connection: Connection) -> None:
        connection.execute(limits).close()
