"""The supervisor of a server process, tested with a real process that uses only the standard library."""

import asyncio
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from app.errors import UpstreamUnavailable
from app.upstream import child as child_server
from app.upstream.child import ChildServer
from tests.waiting import until, wait_until

# Answers every request with its process id and environment, starts a child process, and records every start. It
# implements HTTP by hand because importing http.server takes longer than everything else here.
SERVER = """
import json, os, signal, socket, subprocess, sys, time
path, notes, mode = sys.argv[1:]
with open(notes, "a") as file:
    print(time.monotonic(), os.getpid(), file=file)
print("listening soon", flush=True)
starts = sum(1 for line in open(notes))
if mode == "broken" or (mode == "breaks" and starts > 1):
    sys.exit("no such model: made-up")
if mode == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
grandchild = subprocess.Popen(["sleep", "600"])
about = json.dumps({"pid": os.getpid(), "grandchild": grandchild.pid, "environment": dict(os.environ)})
status = "503 Loading" if mode == "loading" else "200 OK"
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen()
while True:
    connection, _ = listener.accept()
    with connection:
        connection.recv(65536)
        connection.sendall(f"HTTP/1.0 {status}\\r\\nContent-Length: {len(about)}\\r\\n\\r\\n{about}".encode())
"""

Make = Callable[..., ChildServer]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    """Make supervised servers that restart fast by default and are stopped at the end."""
    made: list[ChildServer] = []

    def make_one(mode: str = "well", **options: Any) -> ChildServer:
        def command(path: str) -> Sequence[str]:
            return [sys.executable, "-I", "-S", "-c", SERVER, path, str(tmp_path / "starts"), mode]

        defaults: dict[str, Any] = {
            "health_path": "/health",
            "log_path": tmp_path / "logs" / "server.log",
            "ready_timeout_s": 60,
            "grace_s": 5,
            "backoff_s": 0.05,
        }
        made.append(ChildServer("the server", command, **(defaults | options)))
        return made[-1]

    yield make_one
    for server in made:
        await server.stop()


def starts(tmp_path: Path) -> list[float]:
    """The times of the server's starts, in seconds."""
    return [float(line.split()[0]) for line in (tmp_path / "starts").read_text().splitlines()]


async def ask(server: ChildServer) -> dict[str, Any]:
    """What the server reports about itself."""
    connector = aiohttp.UnixConnector(server.url.removeprefix("unix:"))
    async with aiohttp.ClientSession(connector=connector) as http, http.get("http://localhost/") as reply:
        answer: dict[str, Any] = json.loads(await reply.read())
    return answer


async def restarted(server: ChildServer, before: dict[str, Any]) -> None:
    """Wait until another process answers at the same URL."""

    async def another() -> bool:
        try:
            return (await ask(server))["pid"] != before["pid"]
        except (OSError, aiohttp.ClientError):
            return False

    await until(another)


def is_alive(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in {"Z", "X"}
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_started_server_is_ready(make: Make) -> None:
    """A started server answers at its URL."""
    server = make()
    assert await server.start() == server.url
    assert (await ask(server))["pid"] != os.getpid()


async def test_only_this_user_can_connect(make: Make) -> None:
    """The server's socket is in a folder that nobody else may enter; stopping removes the folder."""
    server = make()
    folder = Path((await server.start()).removeprefix("unix:")).parent
    assert (folder.stat().st_mode & 0o777, folder.stat().st_uid) == (0o700, os.getuid())
    await server.stop()
    assert not folder.exists()


async def test_second_start_changes_nothing(make: Make) -> None:
    """Starting a running server returns the same URL and the same process."""
    server = make()
    url, before = await server.start(), await ask(server)
    assert await server.start() == url
    assert (await ask(server))["pid"] == before["pid"]


async def test_child_inherits_the_environment_without_gateway_settings(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child sees the inherited environment and the additions to it, but no gateway setting."""
    monkeypatch.setenv("FETCHWISE_API_KEYS", "secret")
    monkeypatch.setenv("INHERITED", "yes")
    server = make(env={"ADDED": "too"})
    await server.start()
    environment = (await ask(server))["environment"]
    assert (environment["INHERITED"], environment["ADDED"]) == ("yes", "too")
    assert "FETCHWISE_API_KEYS" not in environment


@pytest.mark.parametrize("victim", ["server", "guard"])
async def test_killed_server_restarts_at_the_same_url(make: Make, victim: str) -> None:
    """When the server or its guard is killed, it restarts at the same URL and no old process remains."""
    server = make()
    url = await server.start()
    before = await ask(server)
    guard = os.getpgid(before["pid"])
    os.kill(before["pid"] if victim == "server" else guard, signal.SIGKILL)
    await restarted(server, before)
    assert server.url == url
    assert not any(map(is_alive, (guard, before["pid"], before["grandchild"])))


def pauses(caplog: pytest.LogCaptureFixture) -> list[float]:
    """The pauses before restarts, as logged."""
    return [record.args[1] for record in caplog.records if record.msg == "restarting %s in %.1f s"]


async def test_pause_doubles_while_the_server_keeps_dying(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that dies at every restart is restarted after pauses that double up to a limit."""
    server = make("breaks", backoff_s=0.05, max_backoff_s=0.2)
    await server.start()
    os.kill((await ask(server))["pid"], signal.SIGKILL)
    await until(lambda: len(starts(tmp_path)) >= 5)
    announced = [0.05, 0.1, 0.2, 0.2]
    assert pauses(caplog)[:4] == announced
    between = [later - sooner for sooner, later in itertools.pairwise(starts(tmp_path))]
    assert all(waited >= pause for waited, pause in zip(between, announced, strict=False))


async def test_stable_period_resets_the_pause(make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """After a server has run long enough, the next restart waits only the first, short pause."""
    server = make(stable_s=0)
    await server.start()
    for count in (2, 3):
        before = await ask(server)
        os.kill(before["pid"], signal.SIGKILL)
        await restarted(server, before)
        assert len(starts(tmp_path)) == count
    assert pauses(caplog) == [0.05, 0.05]


@pytest.mark.parametrize("mode", ["well", "stubborn"])
async def test_stop_leaves_no_process(make: Make, mode: str) -> None:
    """Stopping ends the server and its children, even if it ignores SIGTERM, and can be repeated."""
    server = make(mode, grace_s=0.5)
    await server.start()
    seen = await ask(server)
    guard = os.getpgid(seen["pid"])
    await server.stop()
    await server.stop()
    await until(lambda: not any(map(is_alive, (guard, seen["pid"], seen["grandchild"]))))


async def test_stop_ends_restart_attempts(make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Stopping between two restart attempts ends the attempts."""
    server = make("breaks", backoff_s=0.1)
    await server.start()
    os.kill((await ask(server))["pid"], signal.SIGKILL)
    await until(lambda: bool(pauses(caplog)))
    await server.stop()
    seen = len(starts(tmp_path))
    await asyncio.sleep(0.3)
    assert len(starts(tmp_path)) == seen


async def test_stopped_server_can_start_again(make: Make) -> None:
    """A stopped server starts again, as another process."""
    server = make()
    await server.start()
    before = await ask(server)
    await server.stop()
    await server.start()
    assert (await ask(server))["pid"] != before["pid"]


async def test_early_exit_fails_the_start_with_the_log(make: Make, tmp_path: Path) -> None:
    """A server that exits before it is ready fails the start at once; the error quotes the end of its log."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "server.log").write_text("words of an earlier run\n")
    server = make("broken")
    with pytest.raises(UpstreamUnavailable, match="exit code 1 before it was ready") as failure:
        await server.start()
    assert "no such model: made-up" in str(failure.value)
    assert "earlier run" not in str(failure.value)
    assert failure.value.upstream == "reader"


async def test_server_that_never_gets_ready_fails_the_start_with_the_log(make: Make, tmp_path: Path) -> None:
    """A server that never answers 200 fails the start at the deadline, and is stopped."""
    server = make("loading", ready_timeout_s=1)
    with pytest.raises(UpstreamUnavailable, match="not ready within 1 s") as failure:
        await server.start()
    assert "listening soon" in str(failure.value)
    pid = int((tmp_path / "starts").read_text().split()[1])
    assert not is_alive(pid)


async def test_cancelled_start_leaves_no_process(make: Make, tmp_path: Path) -> None:
    """Cancelling the start while the server loads ends the server."""
    server = make("loading")
    starting = asyncio.create_task(server.start())
    await until(lambda: (tmp_path / "starts").exists() and bool(starts(tmp_path)))
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not is_alive(int((tmp_path / "starts").read_text().split()[1]))


async def test_missing_program_is_named_in_the_error(tmp_path: Path) -> None:
    """The error names a program that cannot be executed."""
    server = ChildServer("it", lambda _: ["/no/such/program"], health_path="/", log_path=tmp_path / "log")
    with pytest.raises(UpstreamUnavailable, match="cannot start /no/such/program"):
        await server.start()


async def test_no_url_before_the_first_start(make: Make) -> None:
    """There is no URL before there is a socket."""
    with pytest.raises(UpstreamUnavailable, match="not started"):
        _ = make().url


async def test_large_log_is_rotated(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log above its size limit is renamed at the next start, so there are never more than two log files."""
    monkeypatch.setattr(child_server, "LOG_LIMIT_BYTES", 100)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "server.log").write_text("old\n" * 100)
    server = make()
    await server.start()
    assert (tmp_path / "logs" / "server.log.1").read_text().startswith("old")
    assert server.log_tail() == "listening soon"


GATEWAY = """
import asyncio, pathlib, sys
from app.upstream.child import ChildServer
script, folder = sys.argv[1], pathlib.Path(sys.argv[2])
def command(path):
    return [sys.executable, "-I", "-S", "-c", script, path, str(folder / "starts"), "well"]
async def main():
    server = ChildServer("it", command, health_path="/", log_path=folder / "log")
    print(await server.start(), flush=True)
    await asyncio.sleep(600)
{run}
"""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_killed_gateway_leaves_no_orphan(tmp_path: Path, loop: str) -> None:
    """After SIGKILL of the gateway, the server, its guard and the server's own children end soon."""
    if loop == "uvloop":
        pytest.importorskip("uvloop")
    run = f"import {loop}; {loop}.run(main())"
    gateway = subprocess.Popen(
        [sys.executable, "-c", GATEWAY.format(run=run), SERVER, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    with gateway:
        assert gateway.stdout is not None
        gateway.stdout.readline()
        server = int((tmp_path / "starts").read_text().split()[1])
        guard = os.getpgid(server)
        gateway.kill()
    wait_until(lambda: not is_alive(server) and not _group_members(guard), "processes are left")


def _group_members(group: int) -> list[int]:
    """The living processes of a process group."""
    members = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if os.getpgid(int(entry.name)) == group and is_alive(int(entry.name)):
                    members.append(int(entry.name))
    return members


async def test_failed_restart_is_retried(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the system cannot create a process, the supervisor retries, and stopping still works."""
    server = make()
    await server.start()
    refusals = 2
    spawn = server._spawn

    async def refused() -> Any:
        nonlocal refusals
        if refusals:
            refusals -= 1
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return await spawn()

    monkeypatch.setattr(server, "_spawn", refused)
    before = await ask(server)
    os.killpg(os.getpgid(before["pid"]), signal.SIGKILL)
    await restarted(server, before)
    assert refusals == 0
    await server.stop()
