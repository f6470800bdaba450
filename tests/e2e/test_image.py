"""The lean image without a container engine: the steps of its Dockerfile are run in a folder."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import yaml

from app.api.receipt import Receipt
from tests.docs.dockerfile import ROOT, Stage, stages
from tests.e2e.processes import START_TIMEOUT_S
from tests.wire.embedding_server import embedding_server
from tests.wire.fault_proxy import answer_json
from tests.wire.reader_server import MODEL, Dialect, reader_server
from tests.wire.servers import free_port, serving
from tests.wire.test_qdrant_wire import FOUND

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

STAGES = stages()
INSTALLED = "/opt/fetchwise"
# Only needed by the embedded image, the offline job or development.
NOT_HERE = ("torch", "xllamacpp", "qdrant_edge", "sentence_transformers", "sklearn", "matplotlib", "pytest")


@dataclass(frozen=True, slots=True)
class Image:
    """The file system of an image, in a folder."""

    root: Path
    stage: Stage

    def inside(self, path: str) -> Path:
        """The location of a path of the image."""
        return self.root / path.lstrip("/")

    @property
    def environment(self) -> dict[str, str]:
        """The image's own variables, with paths moved into the folder."""
        own = self.stage.environment()
        moved = {name: str(self.inside(value)) if value.startswith("/") else value for name, value in own.items()}
        assert own["PATH"] == f"{INSTALLED}/bin:$PATH"
        return moved | {"PATH": f"{self.inside(INSTALLED)}/bin:{self.inside('/usr/local/bin')}:/usr/bin:/bin"}

    @property
    def workdir(self) -> Path:
        """The working directory of its processes."""
        return self.inside(self.stage.all("WORKDIR")[-1].text)

    def files(self) -> set[Path]:
        """Every file outside the data directory, except compiled code."""
        data = self.inside(self.stage.environment()["FETCHWISE_DATA_DIR"])
        found = (path for path in self.root.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        return {path for path in found if not path.is_relative_to(data)}


def build(stage: Stage, root: Path) -> Image:
    """Run the steps of a stage; a stage that it copies from is built in place."""
    image, here = Image(root, stage), root
    for step in stage.steps:
        if step.name == "WORKDIR":
            here = image.inside(step.text)
            here.mkdir(parents=True, exist_ok=True)
        elif step.name == "COPY" and step.source_stage:
            assert step.words == [INSTALLED, INSTALLED]
            build(STAGES[step.source_stage], root)
        elif step.name == "COPY":
            copy(step.words[:-1], step.words[-1], here)
        elif step.name == "RUN" and "useradd" not in step.command:
            execute(step.command.replace(INSTALLED, str(image.inside(INSTALLED))), here, image.environment)
    return image


def copy(sources: Sequence[str], target: str, here: Path) -> None:
    """Copy as COPY does: a folder's contents, or files into a folder or to a name."""
    for origin in (ROOT / source for source in sources):
        if origin.is_dir():
            shutil.copytree(origin, here / target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
            continue
        place = here / target / origin.name if target.endswith("/") else here / target
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(origin, place)


def execute(command: str, here: Path, environment: dict[str, str]) -> None:
    """Run a command of the build; packages come from this machine's own source."""
    ours = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "REQUESTS_", "HOME"))}
    done = subprocess.run(
        ["/bin/sh", "-ec", command], cwd=here, env=environment | ours, capture_output=True, text=True, timeout=900,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def lean() -> Iterator[Image]:
    """The lean image; built once, with the Python that runs the tests."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "usr/local/bin").mkdir(parents=True)
        (root / "usr/local/bin/python").symlink_to(Path(sys.base_prefix) / "bin/python3")
        yield build(STAGES["lean"], root)


def test_lean_image_contains_the_gateway_and_no_engine(lean: Image) -> None:
    """The package is the installed one, and no package that runs a model is there."""
    program = (
        "import app, importlib.util as u, sys; print(app.__file__);"
        f"print([name for name in {NOT_HERE!r} if u.find_spec(name)])"
    )
    done = subprocess.run(
        ["python", "-c", program], env=lean.environment, cwd=lean.workdir, capture_output=True, text=True, check=True
    )
    where, found = done.stdout.splitlines()
    assert Path(where).is_relative_to(lean.inside(INSTALLED))
    assert found == "[]"


def tail(log: Path) -> str:
    """The end of its output."""
    return log.read_text()[-3000:]


@asynccontextmanager
async def running(image: Image, log: Path, **settings: str) -> AsyncIterator[tuple[str, dict[str, str]]]:
    """The image's entry point with these settings, stopped like a container; yields its URL and environment."""
    port = free_port()
    environment = image.environment | settings | {"FETCHWISE_HOST": "127.0.0.1", "FETCHWISE_PORT": str(port)}
    command = [*image.stage.all("ENTRYPOINT")[-1].words, *image.stage.all("CMD")[-1].words]
    url = f"http://127.0.0.1:{port}"
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *command, env=environment, cwd=image.workdir, stdout=file, stderr=file
        )
    try:
        async with httpx.AsyncClient() as client, asyncio.timeout(START_TIMEOUT_S):
            while True:
                assert process.returncode is None, tail(log)
                try:
                    if (await client.get(f"{url}/readyz")).status_code == 200:
                        break
                except httpx.HTTPError:
                    pass
                await asyncio.sleep(0.2)
        yield url, environment
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 30) == 0, tail(log)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_lean_image_answers_with_the_settings_of_the_stack(lean: Image, tmp_path: Path) -> None:
    """As in docker-compose.yml, but with our own servers: it answers, logs, is healthy, and writes only to /data."""
    lean.inside("/data").mkdir(exist_ok=True)
    stack = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["gateway-lean"]["environment"]
    log = tmp_path / "gateway.log"
    before = lean.files()
    async with AsyncExitStack() as servers:
        reader = await servers.enter_async_context(reader_server(Dialect.VLLM))
        embedder = await servers.enter_async_context(embedding_server())
        qdrant = await servers.enter_async_context(serving(answer_json(200, FOUND)))
        qdrant.routes["GET /collections"] = answer_json(
            200, {"result": {"collections": []}, "status": "ok", "time": 0.0}
        )
        qdrant.routes["POST /collections/demo/points/count"] = answer_json(
            200, {"result": {"count": 1}, "status": "ok", "time": 0.0}
        )
        ours = {
            "FETCHWISE_READER": reader.url,
            "FETCHWISE_READER_MODEL": MODEL,
            "FETCHWISE_VECTORS": qdrant.url,
            "FETCHWISE_EMBEDDER": embedder.url,
            "FETCHWISE_EMBEDDER_MODEL": "any",
        }
        assert ours.keys() <= stack.keys()
        async with running(lean, log, **(stack | ours)) as (url, environment), httpx.AsyncClient() as client:
            reply = await client.post(
                f"{url}/answer", json={"question": "What is A?"}, headers={"x-request-id": "r1"}, timeout=60
            )
            kind, *check = lean.stage.all("HEALTHCHECK")[-1].text.partition("CMD ")[1:]
            assert kind == "CMD "
            healthy = await asyncio.to_thread(
                subprocess.run, json.loads(check[0]), env=environment, capture_output=True, check=False
            )
            off = await asyncio.to_thread(
                subprocess.run,
                json.loads(check[0]),
                env=environment | {"FETCHWISE_PORT": str(free_port())},
                capture_output=True,
                check=False,
            )
    receipt = Receipt.model_validate(reply.json())
    assert (receipt.k, receipt.decision.reason, [one.id for one in receipt.citations]) == (5, "not_calibrated", ["a"])
    assert (healthy.returncode, off.returncode != 0) == (0, True)
    lines = [json.loads(line) for line in tail(log).splitlines() if line.startswith("{")]
    assert [line["decision_id"] for line in lines if line.get("request_id") == "r1"] == [receipt.id]
    assert lean.files() == before
