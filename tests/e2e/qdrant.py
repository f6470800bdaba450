"""A real Qdrant server in its own process, which can be killed and restarted on the same data."""

import os
import subprocess
from pathlib import Path

import httpx

from app.upstream.vectors.qdrant import Qdrant
from tests.e2e.processes import REPO
from tests.waiting import wait_until
from tests.wire.servers import direct, free_port

BINARY = REPO / "build" / "qdrant" / "qdrant"


class QdrantProcess:
    """Keeps its ports and data from one start to the next."""

    def __init__(self, folder: Path, *, api_key: str | None = None) -> None:
        self._folder = folder
        self._api_key = api_key
        self._rest, self._grpc = free_port(), free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Its REST address."""
        return f"http://127.0.0.1:{self._rest}"

    @property
    def grpc_url(self) -> str:
        """Its gRPC address."""
        return f"http://127.0.0.1:{self._grpc}"

    def client(self, *, grpc: bool = False, timeout_s: float = 30.0) -> Qdrant:
        """Our adapter, connected to the server."""
        url = self.grpc_url if grpc else self.url
        return Qdrant(url, self._api_key, link=direct("vectors"), grpc=grpc, timeout_s=timeout_s)

    def start(self) -> None:
        """Start the server and wait until it is ready."""
        assert BINARY.exists(), f"no Qdrant server: `make {BINARY.relative_to(REPO)}` fetches it"
        self._folder.mkdir(parents=True, exist_ok=True)
        settings = {
            "QDRANT__SERVICE__HOST": "127.0.0.1",
            "QDRANT__SERVICE__HTTP_PORT": str(self._rest),
            "QDRANT__SERVICE__GRPC_PORT": str(self._grpc),
            "QDRANT__STORAGE__STORAGE_PATH": str(self._folder / "storage"),
            "QDRANT__STORAGE__SNAPSHOTS_PATH": str(self._folder / "snapshots"),
            "QDRANT__TELEMETRY_DISABLED": "true",
        }
        if self._api_key is not None:
            settings["QDRANT__SERVICE__API_KEY"] = self._api_key
        log = self._folder / "qdrant.log"
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [BINARY], cwd=self._folder, env={**os.environ, **settings}, stdout=file, stderr=file
            )
        wait_until(self._ready, f"Qdrant was not ready in time; its log is {log}")

    def kill(self) -> None:
        """Kill it with SIGKILL, like a crash; idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "qdrant.log").read_text()[-3000:]
        try:
            return httpx.get(f"{self.url}/readyz", timeout=2).status_code == 200
        except httpx.HTTPError:
            return False
