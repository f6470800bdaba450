"""Keys over HTTP: the scope of each route, how to send a key, and the errors."""

from collections.abc import Iterator

import pytest
from fastapi.routing import APIRouter
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from app.access.keys import Scope
from app.errors import Denial, UpstreamUnavailable
from tests.fakes.keys import bearer

from .conftest import OpenKeyed
from .keyed import ASKED, NEEDS, Keyed, as_asked, basic
from .replies import check_shape


def _routes(router: APIRouter) -> Iterator[tuple[str, str]]:
    for route in router.routes:
        match route:
            case Route():
                yield from ((method, route.path) for method in route.methods or () if method != "HEAD")
            case Mount(app=StaticFiles()):
                yield "GET", f"{route.path}/{{name}}"
            case _:
                # What include_router leaves behind; any other application that is mounted has to be decided on too.
                yield from _routes(route.original_router)  # type: ignore[attr-defined]


async def test_every_route_is_decided_on(keyed: Keyed) -> None:
    """A new route fails here until its scope is listed."""
    routes = {(method, as_asked(path)) for method, path in _routes(keyed.gateway.app.router)}
    assert routes == NEEDS.keys()


@pytest.mark.parametrize(("method", "path"), NEEDS)
async def test_routes_and_scopes(keyed: Keyed, method: str, path: str) -> None:
    """Each route accepts exactly the keys with its scope; open routes accept everyone."""
    needed = NEEDS[method, path]
    made = {scope: keyed.make(scope)[1] for scope in Scope}
    await keyed.known(*made.values())
    if needed is None:
        for presented in (None, "fw_000000000000_x", *made.values()):
            assert (await keyed.send(method, path, presented)).status_code == 200
        return
    without = check_shape(await keyed.send(method, path), 401, "unauthorised")
    assert "Authorization" in without.error.message
    check_shape(await keyed.send(method, path, "fw_000000000000_x"), 401, "unauthorised")
    for scope, presented in made.items():
        response = await keyed.send(method, path, presented)
        if scope is needed:
            # The feedback is on an answer that was never given.
            assert response.status_code == (404 if path == "/feedback" else 200), response.text
        else:
            error = check_shape(response, 403, "denied")
            assert f"`{needed}`" in error.error.message


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"authorization": "Bearer {}"}, 200),
        ({"authorization": "bearer {}"}, 200),
        ({"authorization": "BEARER   {}"}, 200),
        ({"x-api-key": "{}"}, 200),
        ({"x-api-key": "{}", "authorization": "Basic dTpw"}, 200),
        ({"x-api-key": "wrong", "authorization": "Bearer {}"}, 200),
        ({"x-api-key": "{}", "authorization": "Bearer wrong"}, 401),
        ({"authorization": "{}"}, 401),
        ({"authorization": "Bearer"}, 401),
        ({"authorization": "Bearer {}x"}, 401),
        ({"authorization": "Token {}"}, 401),
        ({"x-api-key": ""}, 401),
        ({"x-api-key": "\xff\xfe"}, 401),
        ({"cookie": "key={}"}, 401),
        ({}, 401),
    ],
)
async def test_ways_to_present_a_key(keyed: Keyed, headers: dict[str, str], status: int) -> None:
    """As a bearer token or in the header X-API-Key; nothing else is accepted."""
    _, presented = keyed.make()
    await keyed.known(presented)
    filled = [(name.encode(), value.format(presented).encode("latin-1")) for name, value in headers.items()]
    response = await keyed.gateway.client.post("/answer", json=ASKED, headers=filled)
    assert response.status_code == status
    if status == 401:
        check_shape(response, 401, "unauthorised")
        assert response.headers["www-authenticate"] == "Bearer"


async def test_a_key_in_the_address_is_no_key(keyed: Keyed) -> None:
    """A key in the URL is ignored, because URLs end up in logs."""
    _, presented = keyed.make()
    await keyed.known(presented)
    response = await keyed.gateway.client.post("/answer", json=ASKED, params={"key": presented, "api_key": presented})
    assert response.status_code == 401


async def test_the_dashboard_asks_a_browser_for_the_key(keyed: Keyed) -> None:
    """As an HTTP Basic password. The data of the page accepts it too, but sends no challenge."""
    operator, answerer = keyed.operator, keyed.make()[1]
    await keyed.known(answerer)
    refused = await keyed.send("GET", "/dashboard")
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"].startswith("Basic realm=")
    for path in ("/dashboard", "/dashboard/data"):
        assert (await keyed.send("GET", path, headers=basic(operator))).status_code == 200
        assert (await keyed.send("GET", path, headers=basic(operator, user=""))).status_code == 200
        assert (await keyed.send("GET", path, headers=basic(answerer))).status_code == 403
        for wrong in (basic("wrong"), basic(""), {"authorization": "Basic !"}, {"authorization": "Basic /w=="}):
            assert (await keyed.send("GET", path, headers=wrong)).status_code == 401
    assert (await keyed.send("GET", "/dashboard/data")).headers["www-authenticate"] == "Bearer"


async def test_a_password_is_for_the_dashboard_alone(keyed: Keyed) -> None:
    """A browser sends a password also for requests made by other sites, so other routes refuse it."""
    _, presented = keyed.make(*Scope)
    await keyed.known(presented)
    for (method, path), needed in NEEDS.items():
        if needed is not None and not path.startswith("/dashboard"):
            assert (await keyed.send(method, path, headers=basic(presented))).status_code == 401, path


async def test_readiness_shows_details_to_operators_only(open_keyed: OpenKeyed) -> None:
    """Everyone sees which upstream is down; only operators see addresses, models and folders."""
    async with open_keyed(artifact=None) as keyed:
        keyed.gateway.reader.fail_with = UpstreamUnavailable("reader", "http://10.0.0.7:8000 is not there")
        await keyed.gateway.refresh()
        _, answerer = keyed.make()
        await keyed.known(answerer)
        for presented in (None, answerer, "fw_000000000000_x"):
            told = await keyed.send("GET", "/readyz", presented)
            assert told.status_code == 503
            assert told.json()["upstreams"] == {"reader": "not ready", "embedder": "ok", "vectors": "ok"}
            assert "10.0.0.7" not in told.text
            assert str(keyed.gateway.settings.calibration.where) not in told.text
            assert told.json()["calibrator"]["problem"]
        told = await keyed.send("GET", "/readyz", keyed.operator)
        assert "10.0.0.7" in told.json()["upstreams"]["reader"]
        assert "no calibrator" in told.json()["calibrator"]["problem"]


async def test_every_denial_is_counted_once(keyed: Keyed) -> None:
    """By reason; every reason starts at zero."""
    assert await keyed.denied() == dict.fromkeys((why.value for why in Denial), 0)
    _, presented = keyed.make()
    await keyed.known(presented)
    for sent, why in ((None, "no_key"), ("fw_000000000000_x", "bad_key"), (presented, "scope")):
        before = await keyed.denied()
        await keyed.send("GET", "/breakeven", sent)
        assert await keyed.denied() == before | {why: before[why] + 1}


async def test_the_description_knows_the_key(keyed: Keyed) -> None:
    """The document names the scheme and the operations that need a key, so that /docs can use one."""
    described = (await keyed.gateway.client.get("/openapi.json")).json()
    assert described["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            wanted = NEEDS[method.upper(), as_asked(path)] is not None
            assert (operation.get("security") == [{"key": []}]) is wanted, path
            assert ({"401", "403", "429"} <= operation["responses"].keys()) is wanted, path


@pytest.mark.parametrize("path", [path for method, path in NEEDS if method == "POST"])
@pytest.mark.parametrize("body", [b"", b"{", b'{"unknown": 1}', b"\xff" * 1000])
async def test_the_key_is_looked_at_before_the_body(keyed: Keyed, path: str, body: bytes) -> None:
    """The key and its scope are checked before the body, so errors of the body are not shown."""
    _, asker = keyed.make(Scope.ANSWER, Scope.FEEDBACK)
    await keyed.known(asker)
    json = {"content-type": "application/json"}
    without = await keyed.gateway.client.post(path, content=body, headers=json)
    other = await keyed.gateway.client.post(path, content=body, headers=json | bearer(keyed.operator))
    rightly = await keyed.gateway.client.post(path, content=body, headers=json | bearer(asker))
    assert (without.status_code, other.status_code) == (401, 403)
    assert rightly.status_code in {400, 422}
