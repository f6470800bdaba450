"""The file with the keys: what is written, who may read it, and what is refused."""

import json
import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest

from app.access.keys import Key, KeyFile, digest, matching, parts
from app.errors import DataError, StorageError
from app.wiring.gateway import key_file
from tests.fakes.keys import make_key


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "keys.json"


@pytest.fixture
def file(path: Path) -> KeyFile:
    return key_file(path)


def test_a_key_comes_back_as_it_was_made(file: KeyFile, path: Path) -> None:
    """Everything that it allows, of its secret only the hash; nothing of both shows where a key is printed."""
    allows = {"collections": ["a", "b"], "filter": {"tenant": "acme", "year": 7, "open": True}, "per_minute": 60}
    made, presented = make_key(path, "acme", **allows)
    (key,) = file.read() or ()
    assert key == made
    assert [type(value) for value in key.filter.values()] == [str, int, bool]
    assert (key.scopes, key.collections, key.per_minute) == (["answer", "feedback"], ["a", "b"], 60)
    assert (key.max_concurrent, key.revoked) == (None, None)
    identifier, secret = parts(presented)
    assert (identifier, digest(secret)) == (made.id, key.sha256)
    assert len(secret) == 43
    assert secret not in path.read_text()
    assert key.sha256 not in repr(key)
    assert matching({key.id: key}, presented) is key


def test_the_file_is_for_its_owner_alone(file: KeyFile, path: Path) -> None:
    """From the first moment on, and after each change, whatever the umask and whatever it was before."""
    old = os.umask(0)
    try:
        made, _ = make_key(path)
        assert path.stat().st_mode & 0o777 == 0o600
        path.chmod(0o644)
        file.revoke(made.id)
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_revoked_key_stays_in_the_list(file: KeyFile, path: Path) -> None:
    """Out of force for good; revoking again keeps the first time; the whole key will do for an id."""
    (one, presented), (other, _) = make_key(path), make_key(path)
    revoked = file.revoke(presented)
    assert revoked.revoked is not None
    assert file.revoke(one.id) == revoked
    assert file.read() == [revoked, other]
    assert matching({one.id: revoked}, presented) is None
    # What is not known is not repeated: it may be a secret that somebody pasted.
    with pytest.raises(DataError, match="no such key") as caught:
        file.revoke("fw_000000000000_hunter2")
    assert "hunter2" not in str(caught.value)


def _stored(path: Path) -> dict[str, Any]:
    make_key(path, filter={"tenant": "acme"})
    content: dict[str, Any] = json.loads(path.read_bytes())
    return content


@pytest.mark.parametrize(
    ("field", "value"),
    [("filter", None), ("filter", {"tenant": 1.5}), ("filter", {"tenant": ["a"]}), ("filter", {"": "a"}),
     ("scopes", ["everything"]), ("scopes", "answer"), ("per_minute", 0), ("per_minute", -1), ("max_concurrent", "2"),
     ("id", "short"), ("id", "../../etc/pas"), ("sha256", "00"), ("collections", None), ("created", "yesterday"),
     ("revoked", "yes")],
)  # fmt: skip
def test_a_wrong_value_refuses_the_file(file: KeyFile, path: Path, field: str, value: Any) -> None:
    """It says where; nothing is guessed."""
    content = _stored(path)
    secret = content["keys"][0]["sha256"]
    content["keys"][0][field] = value
    with pytest.raises(DataError, match=f"keys\\.0\\.{field}") as caught:
        file.parsed(json.dumps(content).encode())
    assert secret not in str(caught.value)


@pytest.mark.parametrize(
    "field", ["filter", "collections", "scopes", "revoked", "per_minute", "max_concurrent", "sha256", "id"]
)
def test_a_missing_or_misspelt_field_refuses_the_file(file: KeyFile, path: Path, field: str) -> None:
    """A forgotten filter would let a tenant read everything, a forgotten `revoked` would let it in again."""
    content = _stored(path)
    content["keys"][0][f"{field}s"] = content["keys"][0].pop(field)
    with pytest.raises(DataError, match="not a file of keys"):
        file.parsed(json.dumps(content).encode())
    # Nor could anybody say which of two with the same id should hold.
    twice = _stored(path)
    twice["keys"] *= 2
    with pytest.raises(DataError, match="twice"):
        file.parsed(json.dumps(twice).encode())


@pytest.mark.parametrize(("field", "value"), [("version", 2), ("filter", {}), ("revoked", None), ("tenant", "b")])
def test_a_field_that_comes_twice_refuses_the_file(file: KeyFile, path: Path, field: str, value: Any) -> None:
    """Parsers differ in which of the two they take; a filter or a revocation must not depend on that."""
    _stored(path)
    content = path.read_text()
    name = f'"{field}":'
    doubled = content.replace(name, f"{name} {json.dumps(value)}, {name}", 1)
    assert doubled != content
    with pytest.raises(DataError, match=f"'{field}' comes twice"):
        file.parsed(doubled.encode())


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff\xfe", b'{"version": 2, "keys": []}', b'{"keys": []}', b"null"]
)
def test_what_is_no_file_of_keys(file: KeyFile, content: bytes) -> None:
    """Half a file, another version, another file."""
    with pytest.raises(DataError, match="not a file of keys"):
        file.parsed(content)


def test_a_damaged_file_is_not_overwritten(path: Path) -> None:
    """Who makes a key then would throw the others away."""
    path.parent.mkdir()
    path.write_bytes(b"{ half")
    with pytest.raises(DataError):
        make_key(path)
    assert path.read_bytes() == b"{ half"


def test_keys_that_are_gone_are_an_error(file: KeyFile, path: Path) -> None:
    """Else a gateway would serve everyone after its keys were lost; a new key, or deleting the mark, is the way on."""
    make_key(path)
    path.unlink()
    with pytest.raises(DataError, match=r"keys\.json is gone.*keys create.*keys\.json\.in-use"):
        file.read()
    make_key(path)
    assert len(file.read() or ()) == 1
    path.unlink()
    path.with_name("keys.json.in-use").unlink()
    assert file.read() is None


def test_no_file_is_no_key(file: KeyFile, path: Path) -> None:
    """Nothing is made by looking."""
    assert file.read() is None
    assert not path.parent.exists()


def test_a_file_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    """A sentence, no trace."""
    (tmp_path / "keys.json").mkdir()
    with pytest.raises(StorageError, match="cannot be read"):
        key_file(tmp_path / "keys.json").read()
    (tmp_path / "plain").write_text("")
    with pytest.raises(StorageError, match="cannot be"):
        make_key(tmp_path / "plain" / "keys.json")


KEY = "fw_0a1b2c3d4e5f_secret"
NOT_IT = ["", "fw", "fw_", "fw__", "secret", KEY[:15], KEY[:16], KEY[:-1], f"{KEY} ", f"{KEY}\xff"]
NOR_THAT = [KEY.upper(), KEY.capitalize(), KEY.replace("fw", "fx"), KEY.replace("0a", "ff"), KEY.replace("_s", "__s")]


@pytest.fixture
def one_key(path: Path) -> dict[str, Key]:
    """Of which KEY is what its owner presents."""
    made, _ = make_key(path)
    return {"0a1b2c3d4e5f": made.model_copy(update={"id": "0a1b2c3d4e5f", "sha256": digest("secret")})}


@pytest.mark.parametrize("presented", [*NOT_IT, *NOR_THAT])
def test_only_the_key_itself_matches(one_key: dict[str, Key], presented: str) -> None:
    """Only exactly the same characters match."""
    assert matching(one_key, KEY) is one_key["0a1b2c3d4e5f"]
    assert matching(one_key, presented) is None


@pytest.mark.parametrize("identifier", ["0a1b2c3d4e5f", "ffffffffffff", ""])
def test_an_unknown_id_is_compared_too(
    one_key: dict[str, Key], identifier: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time taken does not reveal which ids exist: one hash and one comparison each."""
    compared: list[tuple[str, str]] = []

    def compare(left: str, right: str) -> bool:
        compared.append((left, right))
        return left == right

    monkeypatch.setattr("app.access.keys.hmac.compare_digest", compare)
    matching(one_key, f"fw_{identifier}_wrong")
    assert [(len(left), len(right)) for left, right in compared] == [(64, 64)]


def _make_ten(path: Path) -> None:
    for _ in range(10):
        make_key(path)


def test_changes_max_concurrent_are_all_kept(file: KeyFile, path: Path) -> None:
    """Several processes make keys: none is lost."""
    context = multiprocessing.get_context("fork")
    makers = [context.Process(target=_make_ten, args=(path,)) for _ in range(4)]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()
    assert [maker.exitcode for maker in makers] == [0] * 4
    assert len(file.read() or ()) == 40
