"""`fetchwise refit` where probes may be spared: whose embedder embeds, what is refused, and what is done without."""

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from app.settings import Settings
from bench.refit.make_table import write_table
from tests.fakes.embedder import FakeEmbedder
from tests.unit.cli.test_commands import run


class Synthetic(FakeEmbedder):
    """The embedder that the synthetic table was collected with."""

    @property
    def name(self) -> str:
        return "synthetic"


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("table") / "outcomes.jsonl"
    write_table(path, 700, seed=5)
    return path


def embed_with(monkeypatch: pytest.MonkeyPatch, embedder: FakeEmbedder) -> None:
    async def opened(settings: Settings, stack: AsyncExitStack, resilience: object) -> FakeEmbedder:
        return embedder

    monkeypatch.setattr("app.cli.sources.open_embedder", opened)


def test_questions_are_embedded_where_the_objective_counts_probes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, table: Path
) -> None:
    """For tokens every distinct question is embedded once; for passages, or without a pre-gate, none is."""
    embedder = Synthetic()
    embed_with(monkeypatch, embedder)
    arguments = ("refit", "--outcomes", str(table), "--out", str(tmp_path / "out"), "--embed-ms", "5")
    assert run(monkeypatch, *arguments, "--objective", "tokens", "--no-pregate") == 0
    assert run(monkeypatch, *arguments) == 0
    assert embedder.queries == []
    assert run(monkeypatch, *arguments, "--objective", "tokens", "--no-exits") == 0
    assert len(embedder.queries) == 700
    # The synthetic questions say nothing about their answers, and that is said.
    assert "p0 by the question: left out" in capsys.readouterr().out


def test_another_embedder_is_refused_or_done_without(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, table: Path
) -> None:
    """Who insists on a pre-gate is told which embedder the table wants; else a note says so and the refit goes on."""
    embed_with(monkeypatch, FakeEmbedder())
    arguments = ("refit", "--outcomes", str(table), "--out", str(tmp_path / "out"), "--objective", "tokens")
    assert run(monkeypatch, *arguments, "--pregate") == 1
    assert "collected with the embedder 'synthetic'" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()
    assert run(monkeypatch, *arguments) == 0
    assert "note: no pre-gate: the table was collected with" in " ".join(capsys.readouterr().err.split())
    assert (tmp_path / "out" / "CURRENT").exists()
