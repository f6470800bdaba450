"""Start processes on a given core, wait for them, and stop them."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from tests.e2e.processes import REPO

START_TIMEOUT_S = 180.0
_TICKS = os.sysconf("SC_CLK_TCK")


@asynccontextmanager
async def running(
    command: list[str], env: dict[str, str], ready: str, log: Path, core: int, *, cwd: Path = REPO
) -> AsyncIterator[int]:
    """Run a command on one core inside this context, which begins when the address `ready` answers 200."""
    mine = os.sched_getaffinity(0)
    with log.open("ab") as file:
        # A child process and its threads inherit the core of their parent.
        os.sched_setaffinity(0, {core})
        try:
            process = await asyncio.create_subprocess_exec(*command, cwd=cwd, env=env, stdout=file, stderr=file)
        finally:
            os.sched_setaffinity(0, mine)
    try:
        await _wait_ready(process, ready, log)
        yield process.pid
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
            try:
                await asyncio.wait_for(process.wait(), 20)
            except TimeoutError:
                process.kill()
                await process.wait()


async def printed(command: list[str], env: dict[str, str], cwd: Path) -> str:
    """Run a command to its end and return its output."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, cwd=cwd, env=env, stdout=pipe, stderr=pipe)
    out, complaint = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {complaint.decode(errors='replace')[-3000:]}")
    return out.decode().strip()


async def _wait_ready(process: asyncio.subprocess.Process, url: str, log: Path) -> None:
    deadline = asyncio.get_running_loop().time() + START_TIMEOUT_S
    async with httpx.AsyncClient(timeout=5) as client:
        while process.returncode is None and asyncio.get_running_loop().time() < deadline:
            try:
                if (await client.get(url)).status_code == 200:
                    return
            except httpx.HTTPError:
                pass  # not up yet
            await asyncio.sleep(0.1)
    said = await asyncio.to_thread(log.read_text)
    raise RuntimeError(f"{url} was not ready in time: {said[-3000:]}")


def cpu_s(pid: int) -> float:
    """The CPU time that a process and its threads have used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def resident_mb(pid: int) -> float:
    """The resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
