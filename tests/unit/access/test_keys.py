"""The keys in force follow their file, and nothing that happens to the file lets anybody in."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from app.access.keys import KeyFile, KeyStore
from app.errors import ConfigurationError
from app.wiring.parts import reachable_from_elsewhere
from tests.fakes.keys import make_key
from tests.waiting import until


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.access.keys.POLL_S", 0.01)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


@asynccontextmanager
async def watching(path: Path, *, required: bool = False) -> AsyncIterator[KeyStore]:
    keys = KeyStore(path, required=required)
    await keys.start()
    try:
        yield keys
    finally:
        await keys.close()


def overwrite(path: Path, content: bytes | None) -> bytes | None:
    """Put other bytes into the file, or none in its place; returns those of before."""
    before = path.read_bytes() if path.exists() else None
    path.unlink(missing_ok=True)
    if content is not None:
        path.write_bytes(content)
    return before


async def test_off_without_a_file_and_on_with_the_first_key(path: Path) -> None:
    """Without a restart."""
    async with watching(path) as keys:
        assert not keys.on
        made, presented = make_key(path)
        await until(lambda: keys.on)
        found = keys.find(presented)
        assert found is not None
        assert found.id == made.id
        assert keys.find(presented[:-1]) is None


async def test_a_revoked_key_stops_at_the_next_look(path: Path) -> None:
    """The others stay; with the last one gone keys are still on."""
    (one, first), (other, second) = make_key(path), make_key(path)
    async with watching(path) as keys:
        assert keys.find(first)
        KeyFile(path).revoke(one.id)
        await until(lambda: keys.find(first) is None)
        assert keys.find(second)
        KeyFile(path).revoke(other.id)
        await until(lambda: keys.find(second) is None)
        assert keys.on


@pytest.mark.parametrize("content", [b"", b"{", b'{"version": 1, "keys": [{}]}', None])
async def test_a_damaged_or_lost_file_keeps_the_old_keys(
    path: Path, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    """It opens nothing, and is said once; the same file again is no news, and a later one is taken up."""
    caplog.set_level(logging.INFO)
    _, presented = make_key(path)
    async with watching(path) as keys:
        good = overwrite(path, content)
        await until(lambda: "stay in force" in caplog.text)
        await asyncio.sleep(0.1)
        assert keys.on
        assert keys.find(presented)
        overwrite(path, good)
        await until(lambda: "as it was read before" in caplog.text)
        _, later = make_key(path)
        await until(lambda: keys.find(later))
        assert keys.find(presented)


async def test_a_damaged_file_turns_keys_on(path: Path) -> None:
    """Somebody wants keys: nobody is let in until they can be read."""
    async with watching(path) as keys:
        overwrite(path, b"{")
        await until(lambda: keys.on)
        assert keys.find("fw_000000000000_x") is None
    with pytest.raises(ConfigurationError, match="not a file of keys"):
        await KeyStore(path).start()


async def test_nobody_is_let_in_without_a_key(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where keys are required and there is no file, as for a worker that starts after it was lost; or none in it."""
    async with watching(path, required=True) as keys:
        assert keys.on
    overwrite(path, b'{"version": 1, "keys": []}')
    async with watching(path) as keys:
        assert keys.on
        assert "everyone is refused" in caplog.text


async def test_an_unforeseen_error_does_not_end_the_watch(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The next look works again."""
    async with watching(path) as keys:
        with monkeypatch.context() as patched:
            patched.setattr(KeyFile, "content", lambda _: 1 / 0)
            await until(lambda: "trying again" in caplog.text)
        make_key(path)
        await until(lambda: keys.on)


@pytest.mark.parametrize(
    ("host", "reachable"),
    [("127.0.0.1", False), ("127.8.9.10", False), ("localhost", False), ("::1", False), ("0.0.0.0", True),
     ("::", True), ("192.0.2.7", True), ("2001:db8::1", True), ("::ffff:127.0.0.1", False),
     ("::ffff:192.0.2.7", True), ("no-such-host.invalid", True), ("", True)],
)  # fmt: skip
def test_which_addresses_others_can_reach(host: str, reachable: bool) -> None:
    """In doubt they can."""
    assert reachable_from_elsewhere(host) is reachable
