"""`fetchwise keys`, and a gateway that refuses to serve other machines without keys."""

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest

from app.access.keys import KeyFile, Scope, matching, parts
from app.cli.doctor import _keys_found
from app.cli.serve import check_keys
from app.errors import ConfigurationError, DataError
from app.settings import Settings
from app.wiring.gateway import key_file
from tests.fakes.keys import make_key

WORDS: Literal["anyone may ask and see everything"] = "anyone may ask and see everything"


Run = Callable[..., tuple[str, str]]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KeyFile:
    """The file that the commands use."""
    monkeypatch.setenv("FETCHWISE_DATA_DIR", str(tmp_path))
    return key_file(tmp_path / "keys.json")


def test_the_key_is_printed_once_and_alone(run: Run, file: KeyFile) -> None:
    """Only `create` prints the key; the file has its hash, and no command shows either again."""
    printed, said = run("keys", "create", "acme")
    presented = printed.strip()
    (made,) = file.read() or ()
    assert printed == f"{presented}\n"
    assert matching({made.id: made}, presented) is not None
    assert made.id in said
    later = [("list",), ("list", "--json"), ("show", made.id), ("show", presented, "--json"), ("revoke", made.id)]
    shown = [said, *(str(run("keys", *command)) for command in later)]
    for text in shown:
        assert parts(presented)[1] not in text
        assert made.sha256 not in text


def test_what_a_key_may_do(run: Run, file: KeyFile) -> None:
    """Every option is stored with its type, and markup is shown literally."""
    run(
        "keys", "create", "[bold]acme[/]", "--scope", "operate", "--scope", "answer", "--collection", "a",
        "--collection", "b", "--filter", "tenant=acme", "--filter", "year=7", "--filter", "open=true", "--filter",
        'zip="0815"', "--filter", "eq=a=b", "--per-minute", "60", "--max-concurrent", "4",
    )  # fmt: skip
    (made,) = file.read() or ()
    wanted = {
        "name": "[bold]acme[/]",
        "scopes": ["operate", "answer"],
        "collections": ["a", "b"],
        "filter": {"tenant": "acme", "year": 7, "open": True, "zip": "0815", "eq": "a=b"},
        "per_minute": 60,
        "max_concurrent": 4,
        "revoked": None,
    }
    assert made.model_dump(mode="json", exclude={"id", "sha256", "created"}) == wanted
    assert json.loads(run("keys", "list", "--json")[0]) == [made.model_dump(mode="json", exclude={"sha256"})]
    shown, _ = run("keys", "show", made.id)
    for text in ("[bold]acme[/]", 'tenant="acme" and year=7 and open=true', "operate, answer", "a, b", "60", "4"):
        assert text in shown


def test_a_key_by_default(run: Run, file: KeyFile) -> None:
    """By default a key may answer and give feedback, in all collections, ten times a second."""
    assert "fetchwise keys create" in run("keys", "list")[0]
    run("keys", "create", "app")
    run("keys", "create", "unlimited", "--per-minute", "0")
    made, unlimited = file.read() or ()
    assert (made.scopes, made.collections, made.filter) == (["answer", "feedback"], [], {})
    assert (made.per_minute, made.max_concurrent) == (600, None)
    assert unlimited.per_minute is None


@pytest.mark.parametrize(
    ("wrong", "code"),
    [(["--filter", "tenant"], 2), (["--filter", "=a"], 2), (["--scope", "everything"], 2), (["--per-minute", "-1"], 2),
     (["--max-concurrent", "-1"], 2), (["--filter", 'a="x"y"'], 2), (["--filter", f"{'a' * 65}=b"], 1)],
)  # fmt: skip
def test_wrong_options_make_no_key(run: Run, file: KeyFile, wrong: list[str], code: int) -> None:
    """The error says what is wrong."""
    said = run("keys", "create", "x", *wrong, code=code)[1]
    assert said
    assert "Traceback" not in said
    assert file.read() is None


def test_revoking(run: Run, file: KeyFile) -> None:
    """A revoked key stays in the list with its time; `--file` overrides the settings."""
    run("keys", "create", "acme")
    (made,) = file.read() or ()
    assert "was revoked at" in run("keys", "revoke", made.id)[0]
    assert (file.read() or ())[0].revoked is not None
    assert made.id in run("keys", "list")[0]
    assert "no such key" in run("keys", "revoke", "000000000000", code=1)[1]
    elsewhere = Path(file.where).with_name("other.json")
    run("keys", "create", "x", "--file", str(elsewhere))
    assert len(key_file(elsewhere).read() or ()) == len(file.read() or ()) == 1


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "no-such-host.invalid"])
def test_an_open_gateway_is_refused_where_others_reach_it(tmp_path: Path, host: str) -> None:
    """The error says what to do: create a key, use a loopback address, or allow it."""
    with pytest.raises(ConfigurationError, match="fetchwise keys create") as caught:
        check_keys(Settings.of(host=host, data_dir=tmp_path))
    assert f"FETCHWISE_OPEN_TO_ANYONE='{WORDS}'" in str(caught.value)
    check_keys(Settings.of(host="127.0.0.1", data_dir=tmp_path))
    check_keys(Settings.of(host=host, data_dir=tmp_path, open_to_anyone=WORDS))
    make_key(tmp_path / "keys.json")
    check_keys(Settings.of(host=host, data_dir=tmp_path))


def test_serve_refuses_before_it_binds(run: Run, file: KeyFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other words are refused, and the error says which are needed."""
    monkeypatch.setattr("app.cli.serve._listen", lambda *_: pytest.fail("it listened"))
    _, said = run("serve", "--host", "0.0.0.0", "--port", "0", code=1)
    assert "other machines can reach 0.0.0.0" in said
    monkeypatch.setenv("FETCHWISE_OPEN_TO_ANYONE", "yes please")
    _, said = run("serve", "--host", "0.0.0.0", "--port", "0", code=1)
    assert f"'{WORDS}'" in said


@pytest.mark.parametrize(
    ("chosen", "says"),
    [({"host": "127.0.0.1"}, "not a file of keys"), ({"host": "0.0.0.0"}, "not a file of keys"),
     ({"keys": Path("kyes.json")}, "does not exist")],
)  # fmt: skip
def test_a_file_that_cannot_be_used_refuses_the_start(tmp_path: Path, chosen: dict[str, Any], says: str) -> None:
    """A missing or damaged key file refuses the start: a misspelt name must not turn keys off."""
    (tmp_path / "keys.json").write_text("{")
    with pytest.raises(ConfigurationError, match=says):
        check_keys(Settings.of(data_dir=tmp_path, open_to_anyone=WORDS, **chosen))


@pytest.mark.parametrize("key", [None, "fw_0a1b2c3d4e5f_secret"])
def test_ask_presents_the_key(run: Run, file: KeyFile, monkeypatch: pytest.MonkeyPatch, key: str | None) -> None:
    """`fetchwise ask` reads the key from the environment, and never prints it."""
    sent: list[dict[str, Any]] = []

    def stream(*_: str, **how: Any) -> nullcontext[httpx.Response]:
        sent.append(how["headers"])
        return nullcontext(httpx.Response(401, json={"error": {"message": "this key is not known"}}))

    monkeypatch.setattr("app.cli.ask.httpx.stream", stream)
    if key is not None:
        monkeypatch.setenv("FETCHWISE_API_KEY", key)
    printed = run("ask", "Who?", code=1)
    assert sent == [{} if key is None else {"authorization": f"Bearer {key}"}]
    assert "secret" not in str(printed)


def test_the_doctor_says_whether_keys_are_on(tmp_path: Path) -> None:
    """It counts active keys and their scopes, and says who else can read the file."""
    path = tmp_path / "keys.json"

    def seen(**chosen: Any) -> str:
        return _keys_found(Settings.of(data_dir=tmp_path, **chosen))

    assert seen().startswith("off:")
    with pytest.raises(DataError, match="no request is served"):
        seen(keys=path)
    made = [make_key(path)[0], make_key(path, scopes=[Scope.OPERATE])[0], make_key(path)[0]]
    key_file(path).revoke(made.pop().id)
    assert seen().startswith("on: 2 active (scopes: answer 1, feedback 1, operate 1)")
    assert seen().endswith("readable by its owner only")
    path.chmod(0o644)
    assert "other users can read it" in seen()
    path.chmod(0o660)
    with pytest.raises(DataError, match="and add keys"):
        seen()
    for one in made:
        key_file(path).revoke(one.id)
    with pytest.raises(DataError, match="no request is served"):
        seen()


def test_no_name_can_control_the_terminal(run: Run) -> None:
    """Names in tables are printed without control characters."""
    run("keys", "create", "a\x1b[2Jb")
    listed, _ = run("keys", "list")
    shown, _ = run("keys", "show", listed.split("fw_")[1].split("_")[0])
    for printed in (listed, shown):
        assert "\x1b" not in printed
        assert "a\\u001b[2Jb" in printed
