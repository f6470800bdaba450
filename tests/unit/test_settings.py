"""Settings that are more than one word: how they are read, and what is refused."""

import pytest
from pydantic import ValidationError

from app.settings import Settings


@pytest.mark.parametrize(
    ("text", "ks"), [("0,1,5", (0, 1, 5)), ("0, 2, 8", (0, 2, 8)), ("0,3", (0, 3)), ("0,1,3,10", (0, 1, 3, 10))]
)
def test_numbers_of_passages(monkeypatch: pytest.MonkeyPatch, text: str, ks: tuple[int, ...]) -> None:
    """As many as there are commas for, from the environment as from code."""
    monkeypatch.setenv("FETCHWISE_KS", text)
    assert Settings().ks == ks
    monkeypatch.delenv("FETCHWISE_KS")
    assert Settings(ks=ks).ks == ks
    assert Settings().ks == (0, 1, 5)


@pytest.mark.parametrize("text", ["", "0", "1,5", "0,5,1", "0,1,1", "0,-1", "0,x", "0,1000"])
def test_numbers_of_passages_that_make_no_sense(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """They start with 0, ascend, and name at least one number above it."""
    monkeypatch.setenv("FETCHWISE_KS", text)
    with pytest.raises(ValidationError, match="ks"):
        Settings()
