"""What a key allows: the filter that always holds, the collections, and a bucket that fills evenly."""

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.decision.access import Key, Scope, collection_for, digest, matching, narrowed, parts, take, token
from app.errors import Denial, Denied

VALUES = st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "1", "true", "acme", "zeta"])
FILTERS = st.dictionaries(st.sampled_from(["tenant", "lang", "year", "public"]), VALUES, max_size=4)


def a_key(**changes: Any) -> Key:
    return Key(**({"id": "0a1b2c3d4e5f", "digest": digest("secret"), "scopes": frozenset(Scope)} | changes))


def holds(where: Any, payload: dict[str, Any]) -> bool:
    """Whether a passage is found: every field is there with the same value of the same type."""
    return all(name in payload and type(payload[name]) is type(v) and payload[name] == v for name, v in where.items())


@given(forced=FILTERS, asked=FILTERS | st.none(), payload=FILTERS)
def test_a_filter_only_ever_narrows(forced: Any, asked: Any, payload: Any) -> None:
    """What is searched with holds for exactly those passages for which both the key's and the caller's filter hold."""
    contradicted = [name for name in forced if asked and name in asked and not holds({name: forced[name]}, asked)]
    if contradicted:
        with pytest.raises(Denied) as caught:
            narrowed(forced, asked)
        assert caught.value.why is Denial.FILTER
        # Nothing could have been found anyway.
        assert not (holds(forced, payload) and holds(asked, payload))
        return
    where = narrowed(forced, asked)
    assert holds(where or {}, payload) == (holds(forced, payload) and holds(asked or {}, payload))
    assert all(name in (where or {}) for name in forced)


@pytest.mark.parametrize(("forced", "asked"), [(True, 1), (1, True), ("1", 1), (0, False), ("a", "b")])
def test_another_value_or_another_type_contradicts(forced: Any, asked: Any) -> None:
    """True is not 1, and "1" is not 1; the message names the field and not the key's own value."""
    with pytest.raises(Denied, match=r"filter\.tenant") as caught:
        narrowed({"tenant": forced}, {"tenant": asked})
    assert repr(forced) not in str(caught.value) or not isinstance(forced, str)


def test_no_filter_stays_none() -> None:
    """A certified policy is not taken for a filtered one."""
    assert narrowed({}, None) is None
    assert narrowed({}, {}) is None
    assert narrowed({"a": 1}, None) == {"a": 1}


@pytest.mark.parametrize(
    ("listed", "asked", "searched"),
    [
        ((), None, "demo"),
        ((), "other", "other"),
        (("demo", "mine"), None, "demo"),
        (("mine", "yours"), None, "mine"),
        (("mine",), "mine", "mine"),
        (("mine",), "demo", None),
        (("mine",), "MINE", None),
        (("mine",), "nowhere", None),
    ],
)
def test_collections(listed: tuple[str, ...], asked: str | None, searched: str | None) -> None:
    """None listed: all. Who names none gets the default, or the first of the key's own."""
    if searched is None:
        with pytest.raises(Denied) as caught:
            collection_for(a_key(collections=listed), asked, "demo")
        assert caught.value.why is Denial.COLLECTION
    else:
        assert collection_for(a_key(collections=listed), asked, "demo") == searched


@pytest.mark.parametrize("secret", ["secret", "a_b-c_d", "_", "", "_x_"])
def test_a_key_is_taken_apart_as_it_was_made(secret: str) -> None:
    """Secrets hold underscores too."""
    assert parts(token("0a1b2c3d4e5f", secret)) == ("0a1b2c3d4e5f", secret)


KEY = "fw_0a1b2c3d4e5f_secret"


NOT_IT = ["", "fw", "fw_", "fw__", "secret", KEY[:15], KEY[:16], KEY[:-1], f"{KEY} ", f"{KEY}\xff"]
NOR_THAT = [KEY.upper(), KEY.capitalize(), KEY.replace("fw", "fx"), KEY.replace("0a", "ff"), KEY.replace("_s", "__s")]


@pytest.mark.parametrize("presented", [*NOT_IT, *NOR_THAT])
def test_only_the_key_itself_matches(presented: str) -> None:
    """Anything but the very same characters is nobody's."""
    keys = {"0a1b2c3d4e5f": a_key()}
    assert matching(keys, KEY) is keys["0a1b2c3d4e5f"]
    assert matching(keys, presented) is None


def test_a_revoked_key_matches_nothing() -> None:
    """Also with the right secret."""
    assert matching({"0a1b2c3d4e5f": a_key(revoked=True)}, KEY) is None


@pytest.mark.parametrize("identifier", ["0a1b2c3d4e5f", "ffffffffffff", ""])
def test_an_unknown_id_is_compared_too(identifier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever measures time learns nothing about which ids there are: one hash and one comparison each."""
    compared: list[tuple[bytes, bytes]] = []

    def compare(left: bytes, right: bytes) -> bool:
        compared.append((left, right))
        return left == right

    monkeypatch.setattr("app.decision.access.hmac.compare_digest", compare)
    matching({"0a1b2c3d4e5f": a_key()}, f"fw_{identifier}_wrong")
    assert [(len(left), len(right)) for left, right in compared] == [(32, 32)]


def test_a_key_does_not_show_its_digest() -> None:
    """Not where it ends up in a log or a trace."""
    assert repr(digest("secret")) not in repr(a_key())


GAPS = st.lists(st.fractions(0, 90, max_denominator=64), max_size=60)
RATES = st.integers(1, 600)


@given(gaps=GAPS, per_minute=RATES, start=st.integers(0, 10**7))
def test_the_bucket_is_a_token_bucket(gaps: list[Fraction], per_minute: int, start: int) -> None:
    """It takes exactly when one that counts tokens does, which starts full, holds a minute's worth and fills evenly."""
    full_at, tokens, now = 0.0, Fraction(per_minute), Fraction(start)
    for gap in gaps:
        now += gap
        tokens = min(Fraction(per_minute), tokens + gap * per_minute / 60)
        full_at, wait = take(full_at, float(now), per_minute)
        missing = (1 - tokens) * 60 / per_minute
        # Within a microsecond of a token either is right: that is how fine seconds are here.
        if wait == 0.0:
            assert missing <= Fraction(2, 10**6)
            tokens -= 1
        else:
            assert missing > 0
            assert wait == pytest.approx(float(missing), abs=1e-5)


@given(per_minute=RATES, start=st.floats(0, 1e7))
def test_whoever_waits_as_told_is_served(per_minute: int, start: float) -> None:
    """After the seconds of Retry-After, which are whole ones, and not a moment much sooner."""
    full_at, taken = 0.0, 0
    while True:
        full_at, wait = take(full_at, start, per_minute)
        if wait:
            break
        taken += 1
    assert taken == per_minute
    assert 0 < wait <= 60 / per_minute + 1e-5
    assert take(full_at, start + math.ceil(wait), per_minute)[1] == 0.0
    assert take(full_at, start + wait / 2, per_minute)[1] > 0.0


@given(gaps=st.lists(st.floats(0, 5), min_size=1, max_size=80), per_minute=st.integers(1, 60))
def test_never_more_than_a_bucket_and_the_rate(gaps: list[float], per_minute: int) -> None:
    """In any span of time: a full bucket, and what flows in meanwhile."""
    full_at, now, taken = 0.0, 1000.0, []
    for gap in gaps:
        now += gap
        full_at, wait = take(full_at, now, per_minute)
        if wait == 0.0:
            taken.append(now)
    for first in range(len(taken)):
        for last in range(first, len(taken)):
            assert last - first + 1 <= per_minute * (1 + (taken[last] - taken[first]) / 60) + 1e-3
