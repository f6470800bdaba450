"""The valid keys follow their file; a lost or damaged file grants no access."""

from pathlib import Path

import pytest

from app.access import reachable_from_outside
from app.access.keys import KeyFile, KeyStore
from app.errors import ConfigurationError, DataError, StorageUnavailable
from app.wiring.gateway import key_file
from tests.fakes.documents import FakeDocuments
from tests.fakes.keys import make_key


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


async def opened(path: Path, *, required: bool = False) -> KeyStore:
    keys = KeyStore(key_file(path), required=required)
    await keys.open()
    return keys


def overwrite(path: Path, content: bytes | None) -> bytes | None:
    """Put other bytes into the file, or none in its place; returns those of before."""
    before = path.read_bytes() if path.exists() else None
    path.unlink(missing_ok=True)
    if content is not None:
        path.write_bytes(content)
    return before


async def test_off_without_a_file_and_on_with_the_first_key(path: Path) -> None:
    """Without a restart."""
    keys = await opened(path)
    assert not keys.on
    made, presented = make_key(path)
    await keys.refresh()
    assert keys.on
    found = keys.find(presented)
    assert found is not None
    assert found.id == made.id
    assert keys.find(presented[:-1]) is None


async def test_a_revoked_key_stops_at_the_next_look(path: Path) -> None:
    """The others stay; with the last one gone keys are still on."""
    (one, first), (other, second) = make_key(path), make_key(path)
    keys = await opened(path)
    assert keys.find(first)
    key_file(path).revoke(one.id)
    await keys.refresh()
    assert keys.find(first) is None
    assert keys.find(second)
    key_file(path).revoke(other.id)
    await keys.refresh()
    assert keys.find(second) is None
    assert keys.on


@pytest.mark.parametrize("content", [b"", b"{", b'{"version": 1, "keys": [{}]}', None])
async def test_a_damaged_or_lost_file_keeps_the_old_keys(path: Path, content: bytes | None) -> None:
    """It admits no caller; the same file again is fine, and a later one is loaded."""
    _, presented = make_key(path)
    keys = await opened(path)
    good = overwrite(path, content)
    for _ in range(2):
        with pytest.raises(DataError, match="the keys read before stay valid"):
            await keys.refresh()
        assert keys.on
        assert keys.find(presented)
    overwrite(path, good)
    await keys.refresh()
    _, later = make_key(path)
    await keys.refresh()
    assert keys.find(later)
    assert keys.find(presented)


async def test_a_gateway_that_had_keys_does_not_start_without_them(path: Path) -> None:
    """Also where the keys were written by hand."""
    make_key(path)
    path.with_name("keys.json.in-use").unlink()
    await opened(path)
    overwrite(path, None)
    with pytest.raises(ConfigurationError, match="is gone"):
        await opened(path)


async def test_a_damaged_file_turns_keys_on(path: Path) -> None:
    """Until it can be read again, every request is refused."""
    keys = await opened(path)
    overwrite(path, b"{")
    with pytest.raises(DataError):
        await keys.refresh()
    assert keys.on
    assert keys.find("fw_000000000000_x") is None
    with pytest.raises(ConfigurationError, match="not a file of keys"):
        await opened(path)


async def test_no_request_is_served_without_a_key(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where keys are required and there is no file, as for a worker that starts after it was lost; or none in it."""
    assert (await opened(path, required=True)).on
    overwrite(path, b'{"version": 1, "keys": []}')
    assert (await opened(path)).on
    assert "every request is refused" in caplog.text


async def test_keys_that_were_never_read_let_nobody_in() -> None:
    """A gateway starts while their database is away; a key is neither right nor wrong until they are read."""
    documents = FakeDocuments()
    allows = {"scopes": [], "collections": [], "filter": {}, "per_minute": None, "max_concurrent": None}
    _, presented = KeyFile(documents).create("caller", **allows)
    documents.fail_with = StorageUnavailable("no route to host")
    keys = KeyStore(KeyFile(documents), required=True)
    await keys.open()
    assert keys.on
    for _ in range(2):
        with pytest.raises(StorageUnavailable, match="cannot be read yet"):
            keys.find(presented)
        with pytest.raises(StorageUnavailable, match="no route to host"):
            await keys.ping()
        with pytest.raises(StorageUnavailable):
            await keys.refresh()
    documents.fail_with = None
    await keys.refresh()
    await keys.ping()
    assert keys.find(presented)
    assert keys.find(presented[:-1]) is None
    documents.fail_with = StorageUnavailable("no route to host")
    with pytest.raises(DataError, match="the keys read before stay valid"):
        await keys.refresh()
    assert keys.find(presented)


async def test_keys_that_were_damaged_while_they_were_away_let_nobody_in() -> None:
    """The gateway is not ready until they are in use, and they are before anything else is written."""
    documents = FakeDocuments()
    allows = {"scopes": [], "collections": [], "filter": {}, "per_minute": None, "max_concurrent": None}
    _, presented = KeyFile(documents).create("caller", **allows)
    del documents.stored["keys.json.in-use"]
    good, documents.stored["keys.json"] = documents.stored["keys.json"], b"{"
    documents.fail_with = StorageUnavailable("no route to host")
    file = KeyFile(documents)
    keys = KeyStore(file, required=True)
    await keys.open()
    documents.fail_with = None
    with pytest.raises(DataError, match="not a file of keys"):
        await keys.refresh()
    with pytest.raises(StorageUnavailable, match="cannot be read yet"):
        keys.find(presented)
    with pytest.raises(StorageUnavailable, match="not a file of keys"):
        await keys.ping()
    documents.stored["keys.json"] = good
    in_use: list[bool] = []
    mark = file.mark
    file.mark = lambda: (in_use.append(keys.find(presented) is not None), mark())[1]  # type: ignore[method-assign]
    await keys.refresh()
    await keys.ping()
    assert in_use == [True]
    assert "keys.json.in-use" in documents.stored


@pytest.mark.parametrize(
    ("host", "reachable"),
    [("127.0.0.1", False), ("127.8.9.10", False), ("localhost", False), ("::1", False), ("0.0.0.0", True),
     ("::", True), ("192.0.2.7", True), ("2001:db8::1", True), ("::ffff:127.0.0.1", False),
     ("::ffff:192.0.2.7", True), ("no-such-host.invalid", True), ("", True)],
)  # fmt: skip
def test_which_addresses_others_can_reach(host: str, reachable: bool) -> None:
    """In doubt they can."""
    assert reachable_from_outside(host) is reachable
