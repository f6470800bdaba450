"""The filter and the collections of a key."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.api.http.guard import collection_for, narrowed
from app.errors import Denial, Denied

VALUES = st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "1", "true", "acme", "zeta"])
FILTERS = st.dictionaries(st.sampled_from(["tenant", "lang", "year", "public"]), VALUES, max_size=4)


def holds(where: Any, payload: dict[str, Any]) -> bool:
    """Whether a passage matches: each field has the same value of the same type."""
    return all(name in payload and type(payload[name]) is type(v) and payload[name] == v for name, v in where.items())


@given(forced=FILTERS, asked=FILTERS | st.none(), payload=FILTERS)
def test_a_filter_only_ever_narrows(forced: Any, asked: Any, payload: Any) -> None:
    """The combined filter matches exactly the passages that match the key's and the caller's filter."""
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
    """Without any filter the result is None, so the policy stays certified."""
    assert narrowed({}, None) is None
    assert narrowed({}, {}) is None
    assert narrowed({"a": 1}, None) == {"a": 1}


@pytest.mark.parametrize(
    ("listed", "asked", "searched"),
    [
        ([], None, "demo"),
        ([], "other", "other"),
        (["demo", "mine"], None, "demo"),
        (["mine", "yours"], None, "mine"),
        (["mine"], "mine", "mine"),
        (["mine"], "demo", None),
        (["mine"], "MINE", None),
        (["mine"], "nowhere", None),
    ],
)
def test_collections(listed: list[str], asked: str | None, searched: str | None) -> None:
    """A key without collections may search all. Without a requested one it gets the default, or its first."""
    if searched is None:
        with pytest.raises(Denied) as caught:
            collection_for(listed, asked, "demo")
        assert caught.value.why is Denial.COLLECTION
    else:
        assert collection_for(listed, asked, "demo") == searched
