"""Headers of every reply, and CORS."""

import pytest

from tests.fakes.gateway import FakeGateway

from .conftest import Open

ASKED = {"question": "What is the capital of France?"}
HERE, ELSEWHERE = "https://app.example.com", "https://evil.example.com"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/answer", 200),
        ("POST", "/feedback", 422),
        ("GET", "/breakeven", 200),
        ("GET", "/readyz", 200),
        ("GET", "/metrics", 200),
        ("GET", "/dashboard/data", 200),
        ("GET", "/nowhere", 404),
        ("GET", "/answer", 405),
    ],
)
async def test_replies_are_not_kept_on_the_way(gateway: FakeGateway, method: str, path: str, status: int) -> None:
    """Receipts and errors contain private data: no caching, no sniffing, each header once."""
    response = await gateway.client.request(method, path, json=ASKED if method == "POST" else None)
    assert response.status_code == status
    assert response.headers.get_list("cache-control") == ["no-store"]
    assert response.headers.get_list("x-content-type-options") == ["nosniff"]


async def test_a_body_that_is_too_large_too(gateway: FakeGateway) -> None:
    """A request that is refused before it reaches a route has these headers too."""
    response = await gateway.client.post("/answer", content=b"x" * 5000)
    assert response.status_code == 413
    assert response.headers["x-content-type-options"] == "nosniff"


async def test_no_other_origin_may_call(gateway: FakeGateway) -> None:
    """An origin is refused unless the operator names it."""
    asked = await gateway.client.post("/answer", json=ASKED, headers={"origin": ELSEWHERE})
    preflight = {"origin": ELSEWHERE, "access-control-request-method": "POST"}
    options = await gateway.client.options("/answer", headers=preflight)
    assert options.status_code == 405
    for response in (asked, options):
        assert not [name for name in response.headers if name.startswith("access-control")]


async def test_named_origins_may_call(open_gateway: Open) -> None:
    """An allowed origin may send a key and JSON, and read errors; browser credentials are not allowed."""
    async with open_gateway(artifact={}, cors_origins=f" {HERE}/ ,https://other.example.com") as gateway:
        for origin, allowed in ((HERE, HERE), ("https://other.example.com",) * 2, (ELSEWHERE, None)):
            headers = {
                "origin": origin,
                "access-control-request-method": "POST",
                "access-control-request-headers": "authorization,content-type,x-stainless-lang,x-stainless-timeout",
            }
            options = await gateway.client.options("/answer", headers=headers)
            assert options.status_code == (200 if allowed else 400)
            assert options.headers.get("access-control-allow-origin") == allowed
            for body, status in ((ASKED, 200), ({"question": ""}, 422)):
                response = await gateway.client.post("/answer", json=body, headers={"origin": origin})
                assert response.status_code == (status if allowed else 403)
                assert response.headers.get("access-control-allow-origin") == allowed
                assert "access-control-allow-credentials" not in response.headers
