"""A gateway without keys, called by pages of other sites: a foreign host, a foreign origin."""

import pytest

from app.api.http.errors import ErrorOut
from tests.fakes.gateway import HOST, FakeGateway

from .conftest import Open
from .keyed import BODIES, NEEDS, Keyed, as_asked

FOREIGN = "attacker.example:8080"


@pytest.mark.parametrize(("method", "path"), [*NEEDS, ("GET", "/nowhere")])
async def test_a_foreign_host(gateway: FakeGateway, method: str, path: str) -> None:
    """Every route refuses it: DNS may have pointed that name here. The error names the setting."""
    body = BODIES.get(path)
    response = await gateway.client.request(method, as_asked(path), json=body, headers={"host": FOREIGN})
    assert response.status_code == 403
    if path.startswith("/v1/"):
        assert response.json()["error"]["code"] == "denied"
    else:
        assert ErrorOut.model_validate(response.json()).error.type == "denied"
    message = response.json()["error"]["message"]
    assert "'attacker.example:8080'" in message
    assert "FETCHWISE_ALLOWED_HOSTS" in message
    assert gateway.reader.calls == 0
    assert await gateway.metric("denied_total", reason="host") == 1


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "LocalHost:8080", "localhost.:8080", HOST, f"{HOST}:8080"),
        *("127.0.0.1", "127.0.0.1:9", "10.1.2.3:8080", "[::1]:8080", "[::1]"),
    ],
)
async def test_hosts_that_cannot_be_foreign(gateway: FakeGateway, host: str) -> None:
    """Localhost, an IP address, and what the operator names, with any port."""
    assert (await gateway.client.get("/healthz", headers={"host": host})).status_code == 200


@pytest.mark.parametrize("host", ["", "localhost.attacker.example", "127.0.0.1.attacker.example", "[attacker]", ":80"])
async def test_hosts_that_look_like_ours(gateway: FakeGateway, host: str) -> None:
    """Only the whole name counts."""
    assert (await gateway.client.get("/healthz", headers={"host": host})).status_code == 403


async def test_no_host(gateway: FakeGateway) -> None:
    """A request without a host is not from a browser."""
    assert (await gateway.straight(b'{"question": "Who?"}'))[0] == 200


async def test_two_hosts(gateway: FakeGateway) -> None:
    """Both are checked."""
    headers = [("host", "localhost"), ("host", FOREIGN)]
    assert (await gateway.client.get("/healthz", headers=headers)).status_code == 403


@pytest.mark.parametrize("chosen", [{"allowed_hosts": " Other , attacker.example"}, {"allowed_hosts": "*"}])
async def test_hosts_of_the_operator(open_gateway: Open, chosen: dict[str, str]) -> None:
    """A list of names, or any name."""
    async with open_gateway(**chosen) as gateway:
        assert (await gateway.client.get("/healthz", headers={"host": FOREIGN})).status_code == 200


async def test_with_keys_the_host_does_not_matter(keyed: Keyed) -> None:
    """Another site has no key."""
    headers = {"host": FOREIGN, "origin": f"http://{FOREIGN}"}
    assert (await keyed.send("GET", "/metrics", keyed.operator, headers=headers)).status_code == 200
    assert (await keyed.send("POST", "/answer", headers=headers)).status_code == 401


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("origin", ["http://attacker.example", "null", "http://gateway:81", "http://gateway.example"])
async def test_a_foreign_origin(gateway: FakeGateway, path: str, origin: str) -> None:
    """A page of another site cannot make a browser ask or send feedback."""
    response = await gateway.client.post(path, json=BODIES[path], headers={"origin": origin})
    assert response.status_code == 403
    assert "FETCHWISE_CORS_ORIGINS" in response.json()["error"]["message"]
    assert gateway.reader.calls == 0
    assert await gateway.metric("denied_total", reason="origin") == 1


async def test_origins_that_may_ask(open_gateway: Open) -> None:
    """The gateway's own pages, also behind a proxy that adds TLS, and those that the operator names."""
    async with open_gateway(artifact={}, cors_origins="https://App.example") as gateway:
        for origin in (f"http://{HOST}", f"https://{HOST.upper()}", "https://app.example"):
            assert (await gateway.ask(headers={"origin": origin})).status_code == 200
        assert (await gateway.client.get("/breakeven", headers={"origin": "null"})).status_code == 200
    async with open_gateway(cors_origins="*") as gateway:
        assert (await gateway.ask(headers={"origin": "http://any.example"})).status_code == 200


@pytest.mark.parametrize("path", ["/healthz/", "/answer/", "/static"])
async def test_no_redirects(gateway: FakeGateway, path: str) -> None:
    """A redirect would be built from the request's host."""
    assert (await gateway.client.get(path)).status_code == 404
