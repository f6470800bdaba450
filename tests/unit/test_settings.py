"""How settings are read, and what is refused."""

import pickle
from pathlib import Path

import pytest

from app.core.cost import Tariff
from app.errors import ConfigurationError
from app.settings import Settings, read_settings, variables


@pytest.mark.parametrize(
    ("text", "ks"), [("0,1,5", (0, 1, 5)), ("0, 2, 8", (0, 2, 8)), ("0,3", (0, 3)), ("0,1,3,10", (0, 1, 3, 10))]
)
def test_numbers_of_passages(monkeypatch: pytest.MonkeyPatch, text: str, ks: tuple[int, ...]) -> None:
    """As many as there are commas for, from the environment as from code."""
    monkeypatch.setenv("FETCHWISE_KS", text)
    assert read_settings().calibration.ks == ks
    assert Settings.of(ks=ks).calibration.ks == ks
    assert Settings.of().calibration.ks == (0, 1, 5)


@pytest.mark.parametrize("text", ["", "0", "1,5", "0,5,1", "0,1,1", "0,-1", "0,x", "0,1000"])
def test_numbers_of_passages_that_make_no_sense(text: str) -> None:
    """They start with 0, ascend, and name at least one number above it."""
    with pytest.raises(ConfigurationError, match=r"^FETCHWISE_KS: "):
        Settings.of(ks=text)


def test_the_environment_and_what_is_stronger(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each variable reaches its group, in any case of letters; an option of a command wins."""
    monkeypatch.setenv("FETCHWISE_READER", "http://a:1, http://b:1 ,")
    monkeypatch.setenv("FETCHWISE_READER_MODEL", "m")
    monkeypatch.setenv("fetchwise_port", "9000")
    monkeypatch.setenv("FETCHWISE_DATA_DIR", "~/data")
    monkeypatch.setenv("HOME", str(tmp_path))
    settings = read_settings(host="::1", port=0)
    assert (settings.reader.urls, settings.reader.model) == (("http://a:1", "http://b:1"), "m")
    assert (settings.server.host, settings.server.port) == ("::1", 0)
    assert settings.server.data_dir == tmp_path / "data"
    assert settings.keys_at == tmp_path / "data" / "keys.json"


@pytest.mark.parametrize("setting", ["data_dir", "keys", "calibrators", "decision_log"])
def test_paths(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, setting: str) -> None:
    """`~` is the home directory, of a user who exists."""
    monkeypatch.setenv("HOME", str(tmp_path))
    settings = Settings.of(**{setting: "~/here"})
    found = {
        "data_dir": settings.server.data_dir,
        "keys": settings.keys_at,
        "calibrators": settings.calibration.where,
        "decision_log": settings.decision_log_at,
    }
    assert str(found[setting]) == str(tmp_path / "here")
    with pytest.raises(ConfigurationError, match=f"^FETCHWISE_{setting.upper()}: Could not determine home directory"):
        Settings.of(**{setting: "~nobody-has-this-name/here"})


@pytest.mark.parametrize("setting", ["keys", "calibrators"])
def test_an_empty_place_is_refused(setting: str) -> None:
    """It would be the current directory."""
    with pytest.raises(ConfigurationError, match=f"^FETCHWISE_{setting.upper()}: is empty: "):
        Settings.of(**{setting: ""})


def test_what_follows_from_several_settings() -> None:
    """Defaults lie in the data directory; an embedded reader limits what is answered at once."""
    settings = Settings.of(
        data_dir="d", max_in_flight=100, reader_slots=2, tariff_call=2.0, cors_origins="http://a/, b"
    )
    assert (settings.permits, settings.decision_log_at) == (16, "d/decisions.sqlite3")
    assert settings.economics.tariff == Tariff(call=2.0)
    assert settings.access.cors == ("http://a", "b")
    other = Settings.of(keys="k", decision_log="off", reader="vllm", max_in_flight=100)
    assert (other.permits, other.decision_log_at, other.keys_at) == (100, None, Path("k"))


def test_names_that_are_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them are named, each with the nearest setting if there is one near."""
    monkeypatch.setenv("FETCHWISE_READER_MODLE", "m")
    monkeypatch.setenv("FETCHWISE_ZZZZZZZZ", "m")
    monkeypatch.setenv("FETCHWISE_PORT", "x")
    with pytest.raises(ConfigurationError) as refused:
        read_settings()
    assert sorted(str(refused.value).split("; ")) == [
        "FETCHWISE_PORT: Input should be a valid integer, unable to parse string as an integer",
        "FETCHWISE_READER_MODLE is not a setting: did you mean FETCHWISE_READER_MODEL?",
        "FETCHWISE_ZZZZZZZZ is not a setting",
    ]


def test_values_are_kept_out_of_errors() -> None:
    """A value may be a secret, or near one."""
    with pytest.raises(ConfigurationError) as refused:
        Settings.of(reader_api_key=b"\xff", port="secret")
    assert "secret" not in str(refused.value)
    assert refused.value.__suppress_context__


def test_settings_can_be_sent_to_workers() -> None:
    """With their secrets, which do not show."""
    settings = Settings.of(reader_api_key="secret")
    assert "secret" not in repr(settings)
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_every_setting_has_a_variable_of_its_own() -> None:
    """No two settings share a variable."""
    groups = Settings.of()
    assert len(variables()) == sum(len(type(getattr(groups, name)).model_fields) for name in Settings.model_fields)
