"""The folder for temporary files is full."""

import asyncio
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.drills.load import load
from tests.e2e.processes import from_each_worker, gateway
from tests.wire.paper_costs import PaperUpstream

pytestmark = [pytest.mark.drill, pytest.mark.timeout(300)]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder with room for 32 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill(folder: Path) -> None:
    """Leave no room."""
    with suppress(OSError), (folder / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    assert shutil.disk_usage(folder).free == 0


def count_many(url: str) -> None:
    """Requests of every route and several codes, which are counted under labels that are new to the workers."""
    routes = httpx.get(f"{url}/openapi.json", timeout=30).json()["paths"]
    for path in [*routes, "/nowhere"]:
        for method in ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
            # New connections, so that each worker gets some.
            for headers in ({}, {"host": "elsewhere"}):
                httpx.request(method, f"{url}{path}", content=b"{", headers=headers, timeout=30)


@pytest.mark.parametrize("workers", [1, 2])
def test_full_tmp(tmp_path: Path, small_disk: Path, upstream: PaperUpstream, workers: int) -> None:
    """It fills up under load: no question fails, no worker ends, and metrics go on."""
    asyncio.run(upstream.publish_gate(tmp_path / "calibrators"))
    chosen = upstream.settings(tmp_path / "calibrators") | {"workers": str(workers)}
    with gateway(tmp_path, env={"TMPDIR": str(small_disk)}, **chosen) as running:
        before = from_each_worker(running, workers, lambda client: client.get("/healthz"))
        fill(small_disk)
        with load(running.url) as asked:
            asked.wait_for(400)
            count_many(running.url)
        scraped = from_each_worker(running, workers, lambda client: client.get("/metrics"))
        assert asked.failed == [], asked.counts
        assert {reply.status_code for reply in scraped.values()} == {200}
        assert set(scraped) == set(before)
        assert running.process.poll() is None
