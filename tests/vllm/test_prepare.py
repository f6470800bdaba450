"""The parts of the preparation that do not need vLLM."""

import json
from pathlib import Path

import pytest

from tests.vllm import prepare


@pytest.mark.parametrize(
    ("system", "machine", "flags", "problem"),
    [
        ("Linux", "x86_64", {"sse2", "avx2"}, None),
        ("Linux", "aarch64", {"asimd"}, None),
        ("Linux", "x86_64", {"sse2"}, "avx2"),
        ("Linux", "riscv64", set(), "riscv64"),
        ("Darwin", "aarch64", {"asimd"}, "Darwin"),
    ],
)
def test_check_names_what_the_processor_lacks(system: str, machine: str, flags: set[str], problem: str | None) -> None:
    """The check names what is missing, or returns None."""
    answer = prepare.why_not_here(system, machine, flags)
    assert answer is None if problem is None else answer is not None and problem in answer


def test_complete_model_is_not_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory made from the same file by the same versions is not written again; any difference rebuilds it."""
    converted: list[Path] = []
    monkeypatch.setattr(prepare, "convert", lambda gguf, out: converted.append(out))
    monkeypatch.setattr(prepare.importlib.metadata, "version", lambda _: "1.0")
    gguf, out = tmp_path / "weights.gguf", tmp_path / "model"
    gguf.write_bytes(b"weights")
    prepare.prepare(gguf, out)
    prepare.prepare(gguf, out)
    assert len(converted) == 1
    assert json.loads((out / "DONE").read_text())["transformers"] == "1.0"
    gguf.write_bytes(b"other weights")
    prepare.prepare(gguf, out)
    assert len(converted) == 2


def test_failed_conversion_leaves_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed conversion leaves no incomplete directory."""

    def fail(gguf: Path, out: Path) -> None:
        (out / "config.json").touch()
        raise FileNotFoundError("no chat template")

    monkeypatch.setattr(prepare, "convert", fail)
    monkeypatch.setattr(prepare.importlib.metadata, "version", lambda _: "1.0")
    (tmp_path / "weights.gguf").touch()
    with pytest.raises(FileNotFoundError):
        prepare.prepare(tmp_path / "weights.gguf", tmp_path / "model")
    assert not (tmp_path / "model").exists()
