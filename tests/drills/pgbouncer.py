"""PgBouncer from Debian's package, in front of a PostgreSQL server of the tests."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import make_url

from tests.drills.servers import accepts, running
from tests.e2e.postgres import PostgresServer
from tests.wire.servers import free_port


@contextmanager
def pgbouncer(server: PostgresServer, *, mode: str = "transaction") -> Iterator[str]:
    """Pool connections to a new database of the server; yields the URL of the pool."""
    target = make_url(server.database())
    port = free_port()
    # Not below pytest's folder, which other users cannot read: PgBouncer refuses to run as root.
    with tempfile.TemporaryDirectory(prefix="fetchwise-pgbouncer-") as name:
        folder = Path(name)
        (folder / "users").write_text('"us" ""\n')
        (folder / "pgbouncer.ini").write_text(
            "[databases]\n"
            f"pooled = host={target.query.get('host') or target.host} dbname={target.database} user=us\n"
            "[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
            f"auth_type = trust\nauth_file = {folder}/users\npool_mode = {mode}\n"
        )
        user = "postgres" if os.geteuid() == 0 else None
        if user is not None:
            shutil.chown(folder, user)
        with running("pgbouncer", str(folder / "pgbouncer.ini"), folder=folder, user=user, ready=lambda: accepts(port)):
            yield f"postgresql+psycopg://us@127.0.0.1:{port}/pooled"
