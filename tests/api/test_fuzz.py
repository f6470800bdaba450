"""Any body gets a receipt or a 4xx in the usual shape, never a 500."""

import json
from typing import Any

import httpx
from hypothesis import given
from hypothesis import strategies as st

from app.api.http.errors import STATUSES, ErrorOut
from app.api.receipt import Receipt
from app.api.request import AnswerRequest
from tests.fakes.gateway import events_of

from .running import Running

# Every code point, lone surrogates too.
TEXT = st.text(st.characters(exclude_categories=()), max_size=40)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
PLAUSIBLE = {
    "question": TEXT,
    "policy": st.sampled_from(["graded", "binary", "always", "never", None]),
    "retrieval": st.sampled_from(["auto", "required", "forbidden"]),
    "abstain": st.booleans(),
    "collection": st.sampled_from(["demo", "nowhere", None]) | TEXT,
    "filter": st.dictionaries(st.text(max_size=10), st.text(max_size=10) | st.integers() | st.booleans(), max_size=3),
    "max_tokens": st.integers(-1, 600) | st.none(),
    "stream": st.booleans(),
    "style": st.sampled_from(["short", "full"]),
    "tags": st.dictionaries(TEXT, TEXT, max_size=3),
    "timeout_ms": st.integers(-1, 600_001) | st.none(),
}
FIELDS = st.fixed_dictionaries({}, optional={name: value | ANYTHING for name, value in PLAUSIBLE.items()})
BODIES = ANYTHING | FIELDS | st.builds(lambda body: {"question": "What is this?"} | body, FIELDS)

STATUS_OF = {kind: status for _, status, kind in STATUSES}


def test_every_field_is_fuzzed() -> None:
    """Every field of the request is fuzzed."""
    assert set(PLAUSIBLE) == set(AnswerRequest.model_fields)


def ended(response: httpx.Response) -> tuple[int, Any]:
    """The status and body of a reply; for a stream those of its last event."""
    if response.headers["content-type"].startswith("text/event-stream"):
        name, data = events_of(response)[-1]
        return (200 if name == "final" else STATUS_OF[data["error"]["type"]]), data
    return response.status_code, response.json()


def check(response: httpx.Response) -> None:
    """A receipt, or a 4xx in the usual shape (503 if the requested time was too short)."""
    status, body = ended(response)
    if status == 200:
        Receipt.model_validate(body)
        return
    error = ErrorOut.model_validate(body)
    assert 400 <= status < 500 or error.error.type == "deadline_passed", body


@given(body=BODIES)
def test_any_json(running: Running, body: Any) -> None:
    """Any JSON, including lone surrogates, NaN and huge numbers, is answered or refused."""
    check(running.post("/answer", json.dumps(body).encode()))


@given(content=st.binary(max_size=200) | st.builds(lambda raw: b'{"question": "' + raw + b'"}', st.binary(max_size=60)))
def test_any_bytes(running: Running, content: bytes) -> None:
    """Any bytes are answered or refused."""
    check(running.post("/answer", content))
