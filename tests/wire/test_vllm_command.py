"""How vLLM is started: the command line, the environment, and the refusal if it is not installed."""

import re
from pathlib import Path

import pytest

from app.errors import ConfigurationError, UpstreamUnavailable
from app.upstream.readers.servers import vllm_server

# Stands in for a Python with vLLM: a package of that name that prints its arguments and exits.
SERVER = """
import os, sys
print("arguments", *sys.argv[1:])
print("environment", {name: os.environ.get(name) for name in ("VLLM_NO_USAGE_STATS", "DO_NOT_TRACK", "ADDED")})
"""


@pytest.fixture
def fake_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "packages" / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    for folder in (package, *list(package.parents)[:2]):
        (folder / "__init__.py").touch()
    (package / "api_server.py").write_text(SERVER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))


@pytest.mark.usefixtures("fake_vllm")
async def test_command_line(tmp_path: Path) -> None:
    """VLLM serves the model on a Unix socket, with what the probe needs, without telemetry, extra arguments last."""
    server = vllm_server("a-model", log_path=tmp_path / "log", extra_args=("--dtype", "float32"), env={"ADDED": "1"})
    with pytest.raises(UpstreamUnavailable, match="before it was ready"):
        await server.start()
    arguments, environment = server.log_tail().splitlines()
    assert re.fullmatch(
        r"arguments --model a-model --uds /\S+/http\.sock --enable-prefix-caching --max-logprobs 20 "
        "--disable-uvicorn-access-log --dtype float32",
        arguments,
    )
    assert environment == "environment {'VLLM_NO_USAGE_STATS': '1', 'DO_NOT_TRACK': '1', 'ADDED': '1'}"


def test_python_without_vllm_is_refused(tmp_path: Path) -> None:
    """If vLLM is not installed, nothing is started and the message says what to install."""
    # A Python that finds no packages, even if the one that runs this test has vLLM.
    without = tmp_path / "python"
    without.write_text("#!/bin/sh\nexit 1\n")
    without.chmod(0o755)
    with pytest.raises(ConfigurationError, match=r"fetchwise\[vllm\]"):
        vllm_server("a-model", log_path=tmp_path / "log", python=str(without))


def test_missing_python_is_refused(tmp_path: Path) -> None:
    """The error names a Python that cannot be run."""
    with pytest.raises(ConfigurationError, match="cannot run /no/such/python"):
        vllm_server("a-model", log_path=tmp_path / "log", python="/no/such/python")
