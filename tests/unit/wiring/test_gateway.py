"""What opening and closing a gateway leaves behind."""

from pathlib import Path

import pytest

from tests.fakes.gateway import fake_gateway


async def test_a_single_process_removes_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its counts are its own."""
    (temporary := tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    async with fake_gateway(tmp_path, artifact={}) as gateway:
        await gateway.receipt()
        assert list(temporary.rglob("*.ring"))
        assert vars(gateway.app.state)["_state"].keys() == {"gateway"}
    assert list(temporary.iterdir()) == []
