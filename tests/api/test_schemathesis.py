"""The OpenAPI document is correct: valid and invalid requests get documented responses."""

from collections.abc import Iterator
from http import HTTPStatus

import httpx
import pytest
import requests
import schemathesis
from hypothesis import settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from app.access.keys import Scope
from app.settings import Settings
from app.wiring.gateway import create_app
from tests.fakes.keys import bearer, make_key

from .running import Running, running_gateway

BASE_URL = "http://gateway"
# Of each operation, of which there are dozens.
EXAMPLES = settings.default.max_examples // 5
# Fakes answer at once, but a busy machine may take a while to.
PATIENCE_MS = 10_000
CONFORMANCE = [
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]

schema = schemathesis.openapi.from_dict(create_app(Settings.of()).openapi())


@pytest.fixture(scope="module")
def open_to_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway without keys."""
    with running_gateway(tmp_path_factory.mktemp("open"), artifact={}) as running:
        yield running


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, list[dict[str, str]]]]:
    """A gateway with keys, and the headers of callers: with every scope, with one, over their limit, and without."""
    folder = tmp_path_factory.mktemp("keys")
    chosen = [{"scopes": list(Scope)}, {"scopes": [Scope.OPERATE]}, {"scopes": list(Scope), "per_minute": 1}]
    presented = [make_key(folder / "data" / "keys.json", f"key {n}", **one)[1] for n, one in enumerate(chosen)]
    with running_gateway(folder, artifact={}) as running:
        yield running, [*(bearer(one) for one in presented), {}]


def check(case: schemathesis.Case, running: Running, **headers: str) -> int:
    """Send a generated request, check the response against the document, and return the status."""
    sent = requests.Request(**case.as_transport_kwargs(base_url=BASE_URL, headers=headers)).prepare()
    assert sent.url is not None
    reply = running.send(str(sent.method), sent.url, content=sent.body or b"", headers=dict(sent.headers))
    # With parts that are well, no status of the 500s may come, documented or not.
    case.validate_response(reply, checks=CONFORMANCE if _hurried(case, reply) else [not_a_server_error, *CONFORMANCE])
    return reply.status_code


def _hurried(case: schemathesis.Case, reply: httpx.Response) -> bool:
    """Whether the requested time was too short."""
    body = case.body if isinstance(case.body, dict) else {}
    # On the OpenAI API it is among our own choices.
    chosen = body["fetchwise"] if isinstance(body.get("fetchwise"), dict) else body
    asked = chosen.get("timeout_ms")
    hurry = isinstance(asked, int) and asked < PATIENCE_MS
    return hurry and reply.status_code == HTTPStatus.SERVICE_UNAVAILABLE and "deadline_passed" in reply.text


@schema.parametrize()
@settings(max_examples=EXAMPLES)
def test_without_keys(case: schemathesis.Case, open_to_all: Running) -> None:
    """No key is needed, and every reply is documented."""
    assert check(case, open_to_all) not in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}


@schema.parametrize()
@pytest.mark.slow
@settings(max_examples=EXAMPLES // 4)
def test_with_keys(case: schemathesis.Case, keys: tuple[Running, list[dict[str, str]]]) -> None:
    """With any key or none every response is documented."""
    running, callers = keys
    for headers in callers:
        check(case, running, **headers)
