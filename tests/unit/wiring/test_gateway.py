"""What opening and closing a gateway leaves behind."""

from pathlib import Path

import pytest

from app.core.artifact import Identity
from app.errors import UpstreamUnavailable
from tests.fakes.embedder import FakeEmbedder
from tests.fakes.gateway import Fakes, fake_gateway
from tests.fakes.reader import FakeReader
from tests.fakes.retriever import FakeRetriever


async def test_a_single_process_removes_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its counts are its own."""
    (temporary := tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    async with fake_gateway(tmp_path, artifact={}) as gateway:
        await gateway.receipt()
        assert list(temporary.rglob("*.ring"))
        assert vars(gateway.app.state)["_state"].keys() == {"gateway"}
    assert list(temporary.iterdir()) == []


class DownReader(FakeReader):
    """Counts how often it is asked for its identity, which it never gives."""

    asked = 0

    async def identify(self) -> Identity:
        self.asked += 1
        raise UpstreamUnavailable("reader", "no reply within 30 s")


async def test_a_start_waits_once_for_a_reader_that_is_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attempt may take the reader's whole timeout."""
    monkeypatch.setattr("app.wiring.gateway.CALIBRATOR_EVERY_S", 3600.0)
    fakes = Fakes(reader := DownReader(), FakeEmbedder(), FakeRetriever())
    async with fake_gateway(tmp_path, fakes=fakes):
        assert reader.asked == 1
