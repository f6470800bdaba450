"""Seeding fills only a collection that does not exist yet; the limit of open files follows that of connections."""

import asyncio
import resource
from pathlib import Path

import pytest

from app.cli.serve import _OTHER_FILES, _seed_later, _seeded, allow_connections
from app.errors import UpstreamUnavailable
from app.settings import Settings
from app.upstream.parts import Parts
from tests.fakes.embedder import FakeEmbedder
from tests.fakes.reader import FakeReader
from tests.fakes.retriever import FakeRetriever
from tests.waiting import until


@pytest.fixture
def seed(tmp_path: Path) -> Path:
    path = tmp_path / "seed.jsonl"
    path.write_text("".join(f'{{"title": "T{i}", "text": "Passage number {i}."}}\n' for i in range(100)))
    return path


@pytest.fixture
def parts() -> Parts:
    return Parts(FakeReader(), FakeEmbedder(), FakeRetriever())


def unfinished(folder: Path) -> list[Path]:
    return list(folder.glob("seeding-*"))


async def test_a_collection_that_is_not_there_is_filled(tmp_path: Path, seed: Path, parts: Parts) -> None:
    """The first start creates it, and removes the marker of an unfinished one."""
    assert await _seeded(Settings.of(data_dir=tmp_path, seed=seed), parts)
    assert await parts.vectors.count("demo") == 100
    assert not unfinished(tmp_path)


async def test_another_collection_is_not_seeded(tmp_path: Path, seed: Path, parts: Parts) -> None:
    """An existing collection is not changed."""
    await parts.vectors.create("demo", dimension=parts.embedder.dimension)
    assert await _seeded(Settings.of(data_dir=tmp_path, seed=seed), parts)
    assert await parts.vectors.count("demo") == 0


async def test_seeding_waits_for_upstreams(
    tmp_path: Path, seed: Path, parts: Parts, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is tried again until it works; what was left incomplete is completed."""
    monkeypatch.setattr("app.cli.serve._PAUSE_S", 0.0)
    settings, embedder = Settings.of(data_dir=tmp_path, seed=seed), parts.embedder
    assert isinstance(embedder, FakeEmbedder)
    embedder.fail_with = UpstreamUnavailable("embedder", "interrupted")
    assert not await _seeded(settings, parts)
    assert "interrupted" in caplog.text
    assert unfinished(tmp_path)
    seeding = asyncio.create_task(_seed_later(settings, parts))
    await until(lambda: caplog.text.count("interrupted") > 2)
    embedder.fail_with = None
    await seeding
    assert await parts.vectors.count("demo") == 100


@pytest.mark.parametrize(
    ("soft", "hard", "after"),
    [
        (1024, 1_000_000, 500 + _OTHER_FILES),
        (1024, resource.RLIM_INFINITY, 500 + _OTHER_FILES),
        (256, 1200, 1200),
        (65_536, 65_536, None),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, None),
    ],
)
def test_the_limit_of_open_files(
    soft: int, hard: int, after: int | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is raised as far as needed and allowed; a warning says if that is not enough."""
    made: list[tuple[int, tuple[int, int]]] = []
    monkeypatch.setattr("resource.getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr("resource.setrlimit", lambda *given: made.append(given))
    allow_connections(500)
    assert made == ([] if after is None else [(resource.RLIMIT_NOFILE, (after, hard))])
    assert ("FETCHWISE_MAX_CONNECTIONS" in caplog.text) == (hard == 1200)
