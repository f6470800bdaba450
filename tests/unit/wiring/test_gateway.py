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


async def test_a_start_without_its_databases(tmp_path: Path) -> None:
    """Log, calibrators and keys are away: the gateway serves nobody, and says why."""
    away = "postgresql://us:secret@/x?host=/nowhere"
    async with fake_gateway(tmp_path, decision_log=away, calibrators=away, keys=away) as gateway:
        asked = {"question": "Who?"}
        without = await gateway.client.post("/answer", json=asked)
        tried = await gateway.client.post("/answer", json=asked, headers={"X-API-Key": "fw_0_x"})
        assert (without.status_code, tried.status_code) == (401, 503)
        assert tried.json()["error"]["type"] == "storage_unavailable"
        ready = await gateway.client.get("/readyz", headers={"X-API-Key": "fw_0_x"})
        assert (ready.status_code, ready.json()["upstreams"]["keys"]) == (503, "not ready")
        assert "secret" not in ready.text


async def test_questions_are_answered_while_the_log_is_away(tmp_path: Path) -> None:
    """Feedback is refused, and so are audits; answers wait in memory."""
    away = "postgresql://us:secret@/y?host=/nowhere"
    async with fake_gateway(tmp_path, decision_log=away, artifact={}) as gateway:
        receipt = await gateway.receipt()
        given = await gateway.client.post("/feedback", json={"id": receipt["id"], "correct": True})
        audit = await gateway.client.get("/audit")
        assert (given.status_code, audit.status_code) == (503, 503)
        assert "secret" not in given.text + audit.text
