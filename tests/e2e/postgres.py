"""A private PostgreSQL server from Debian's package, on a Unix socket in its own folder."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from sqlalchemy import create_engine

from tests.waiting import wait_until

if TYPE_CHECKING:
    from tests.drills.hosts import Host

INSTALLED = Path("/usr/lib/postgresql")


class PostgresServer:
    """Can be stopped, killed and restarted; creates empty databases. `inside` another host it also listens on TCP."""

    def __init__(self, folder: Path, inside: "Host | None" = None) -> None:
        programs = sorted(INSTALLED.glob("*/bin/initdb"))
        assert programs, "PostgreSQL is not installed: apt-get install postgresql (make test-e2e does)"
        self._folder = folder
        self._inside = inside
        self._bin = programs[-1].parent
        # It refuses to run as root.
        self._user = "postgres" if os.geteuid() == 0 else None
        if self._user is not None:
            shutil.chown(folder, self._user)
        self._run("initdb", "--username=us", "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync")
        if inside is not None:
            (folder / "data/pg_hba.conf").write_text("local all all trust\nhost all all samenet trust\n")
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, database: str = "postgres") -> str:
        """The URL of a database for a setting."""
        if self._inside is not None:
            return f"postgresql+psycopg://us@{self._inside.address}/{database}"
        return f"postgresql+psycopg://us@/{database}?host={self._folder}"

    def database(self) -> str:
        """Create a database and return its URL."""
        name = f"log_{uuid4().hex}"
        engine = create_engine(self.url(), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.exec_driver_sql(f"CREATE DATABASE {name}")
        engine.dispose()
        return self.url(name)

    def start(self) -> None:
        """Start the server and wait until it answers."""
        # A different time zone from ours: no time in the log may depend on it.
        options = ["-F", "-k", str(self._folder), "-c", "timezone=Asia/Kolkata"]
        options += ["-c", f"listen_addresses={self._inside.address if self._inside else ''}"]
        # It ends with the tests, even if those are killed. Only root may enter the other host.
        become = ["--reuid", self._user, "--regid", self._user, "--init-groups"] if self._user else []
        prefix = [*(self._inside.prefix if self._inside else ()), "setpriv", *become, "--pdeathsig", "INT"]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*prefix, self._bin / "postgres", "-D", self._folder / "data", *options],
                stdout=log, stderr=log, cwd=self._folder,
            )  # fmt: skip
        wait_until(self._ready, "PostgreSQL does not start")

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the server by a signal, by default cleanly but without waiting for clients; idempotent."""
        if self._process is not None and self._process.poll() is None:
            pid = self._process.pid
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            self._process.send_signal(how)
            self._process.wait(60)
            # After a kill its child processes serve their clients for a moment longer.
            wait_until(lambda: not any(map(_alive, children)), "PostgreSQL does not end")
            self._process = None

    def _ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "log").read_text()
        return subprocess.run([self._bin / "pg_isready", "-q", "-h", self._folder], check=False).returncode == 0

    def _run(self, program: str, *options: str) -> None:
        command: list[str | Path] = [self._bin / program, "-D", self._folder / "data", *options]
        done = subprocess.run(command, user=self._user, cwd=self._folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def _alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@contextmanager
def postgres_server(inside: "Host | None" = None) -> Iterator[PostgresServer]:
    """A running server; stopped and removed at the end."""
    # Not below pytest's folder: its names are too long for a socket, and other users cannot read it.
    with tempfile.TemporaryDirectory(prefix="fetchwise-postgres-") as folder:
        server = PostgresServer(Path(folder), inside)
        try:
            server.start()
            yield server
        finally:
            server.stop()
