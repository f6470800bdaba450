"""The pages: they exist, load nothing from other hosts, and their data has its shape without traffic."""

import re
from html import escape
from html.parser import HTMLParser
from importlib.resources import files
from typing import Any

import pytest
from fastapi import FastAPI

from app.api.app import VERSION
from app.api.pages import add_pages
from app.core.policy import Policy, Reason, Retrieval
from app.errors import UpstreamUnavailable
from tests.fakes.gateway import FakeGateway, client_of

from .conftest import Open

PAGES = ("/", "/dashboard", "/docs")
OWN = sorted(entry.name for entry in (files("app.api") / "static").iterdir() if not entry.name.endswith(".html"))
STATIC = (*OWN, "swagger-ui-bundle.js", "swagger-ui.css")


class Links(HTMLParser):
    """Everything that a page loads, links to, or contains inline."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.inline: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.links += [value or "" for name, value in attrs if name in {"src", "href", "action", "srcset", "data"}]
        self.inline += [name for name in named if name.startswith("on") or name == "style"]
        if tag == "style" or (tag == "script" and "src" not in named):
            self.inline.append(tag)


async def links(gateway: FakeGateway, path: str) -> Links:
    """Parse a page."""
    parser = Links()
    parser.feed((await gateway.client.get(path)).text)
    return parser


@pytest.mark.parametrize("path", [*PAGES, *(f"/static/{name}" for name in STATIC)])
async def test_every_file_has_strict_headers(gateway: FakeGateway, path: str) -> None:
    """Nothing inline or from other hosts, no sniffing, framing or referrer, and an ETag."""
    response = await gateway.client.get(path)
    assert response.status_code == 200
    policy = dict(part.strip().split(" ", 1) for part in response.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert "unsafe" not in response.headers["content-security-policy"]
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["referrer-policy"] == "no-referrer"
    assert response.headers["cache-control"] == "no-cache"
    again = await gateway.client.get(path, headers={"if-none-match": response.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    changed = await gateway.client.get(path, headers={"if-none-match": '"0123456789abcdef"'})
    assert changed.content == response.content
    head = await gateway.client.head(path)
    assert (head.status_code, head.headers["etag"]) == (200, response.headers["etag"])


@pytest.mark.parametrize("path", PAGES)
async def test_a_page_stays_on_this_host(gateway: FakeGateway, path: str) -> None:
    """All links of a page are relative and exist, and nothing is inline."""
    found = await links(gateway, path)
    assert found.links
    assert found.inline == []
    for link in found.links:
        assert not re.match(r"[a-z]+:|//", link), link
        if not link.startswith("#"):
            assert (await gateway.client.get(f"/{link.removeprefix('./')}")).status_code == 200, link


@pytest.mark.parametrize("name", OWN)
def test_no_own_file_names_another_host(name: str) -> None:
    """Scripts and styles load nothing from other hosts."""
    text = (files("app.api") / "static" / name).read_text().replace("http://www.w3.org/2000/svg", "")
    assert re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}", text) == []
    assert "innerHTML" not in text


async def test_an_unknown_file_is_a_404_in_the_one_shape(gateway: FakeGateway) -> None:
    """Pages have one path each, and files outside the folder are not served."""
    for name in ("nothing.js", "ask.html", "..%2Fpages.py", "%2e%2e/pages.py"):
        response = await gateway.client.get(f"/static/{name}")
        assert response.status_code == 404, name
        assert response.json()["error"]["type"] == "not_found"


async def test_the_pages_are_not_part_of_the_interface(gateway: FakeGateway) -> None:
    """The pages and their data are not in the OpenAPI document."""
    paths = (await gateway.client.get("/openapi.json")).json()["paths"]
    assert not {"/", "/dashboard", "/dashboard/data", "/docs", "/static/{name}"} & set(paths)


def test_the_receipt_has_words_for_everything() -> None:
    """The page explains every reason and offers every option of a request."""
    static = files("app.api") / "static"
    script = (static / "receipt.js").read_text()
    page = (static / "ask.html").read_text()
    for reason in Reason:
        assert re.search(rf"^  {reason.value}: \"", script, re.MULTILINE), reason
    for choice in (*Policy, *Retrieval):
        assert f'<option value="{choice.value}"' in page, choice


@pytest.mark.parametrize("collection", ["demo", 'a "quoted" <name>'])
async def test_the_page_knows_what_it_searches(collection: str) -> None:
    """The page knows the collection, because examples are only for the demo, and the ks."""
    app = FastAPI()
    add_pages(app, collection=collection, ks=(0, 2, 10))
    async with client_of(app) as client:
        page = (await client.get("/")).text
    assert f'<body data-collection="{escape(collection)}" data-ks="0,2,10">' in page


async def data(gateway: FakeGateway, window: int = 900) -> dict[str, Any]:
    """What the dashboard draws."""
    await gateway.refresh()
    response = await gateway.client.get("/dashboard/data", params={"window": window})
    assert response.status_code == 200, response.text
    assert response.headers["cache-control"] == "no-store"
    found: dict[str, Any] = response.json()
    return found


async def test_the_dashboard_without_traffic(gateway: FakeGateway) -> None:
    """Everything that the page reads is there: no answers, no invented figures, and the running system."""
    found = await data(gateway)
    assert (found["answers"], found["in_flight"], found["shed"]) == (0, 0, 0)
    assert set(found["timeline"]) == {"start", "bucket_seconds", "k0", "k1", "k5", "abstain"}
    assert found["breakeven"]["window"]["gated"] == 0
    assert found["breakeven"]["costs"]["latency"]["against"]["k1"]["verdict"] == "unknown"
    assert found["saved"]["tokens_always"] is None
    assert found["upstreams"] == {"reader": "ok", "embedder": "ok", "vectors": "ok"}
    in_force = {"version": "2026-01-31-0a1b2c3d", "certified": True, "problem": ""}
    assert in_force.items() <= found["calibrator"].items()
    assert found["thresholds"] == {"tau0": 0.75, "tau1": 0.5, "tau_abstain": 0.25}


async def test_the_dashboard_opens_with_whether_it_is_broken(gateway: FakeGateway) -> None:
    """Readiness, failures of the last minutes, and what runs since when."""
    found = await data(gateway)
    assert (found["state"], found["failed"], found["version"]) == ("ready", 0, VERSION)
    assert 0 <= found["now"] - found["started"] < 600
    gateway.reader.fail_with = UpstreamUnavailable("reader", "down")
    for _ in range(3):
        assert (await gateway.ask()).status_code == 503
    found = await data(gateway)
    assert (found["state"], found["failed"]) == ("down", 3)


async def test_the_dashboard_counts_what_was_answered(gateway: FakeGateway) -> None:
    """Answers show up with their action, their latency, and their passages."""
    for policy in ("graded", "always", "always"):
        assert (
            await gateway.client.post("/answer", json={"question": "What is it?", "policy": policy, "abstain": False})
        ).status_code == 200
    found = await data(gateway, 300)
    assert found["answers"] == 3
    assert found["actions"]["k5"] >= 2
    assert sum(found["timeline"]["k5"]) == found["actions"]["k5"]
    assert found["latency"]["k5"]["total"]["n"] == found["actions"]["k5"]
    assert found["latency"]["all"]["total"]["p95"] > 0


async def test_the_dashboard_names_a_part_that_is_down(gateway: FakeGateway) -> None:
    """The dashboard shows the error of the upstream."""
    gateway.reader.fail_with = UpstreamUnavailable("reader", "the reader is gone")
    assert (await data(gateway))["upstreams"]["reader"] == "the reader is gone"


async def test_without_a_calibrator_there_are_no_thresholds(open_gateway: Open) -> None:
    """Without a calibrator there are no thresholds, and the problem says why."""
    async with open_gateway() as gateway:
        found = await data(gateway)
    assert found["thresholds"] is None
    assert found["breakeven"]["reference"] == "k5"
    assert "no calibrator" in found["calibrator"]["problem"]


@pytest.mark.parametrize("window", ["0", "301", "x", "-1"])
async def test_only_the_windows_of_the_page_are_served(gateway: FakeGateway, window: str) -> None:
    """Only three windows are allowed, because each is computed once for all viewers."""
    response = await gateway.client.get("/dashboard/data", params={"window": window})
    assert response.status_code == 422
    assert response.json()["error"]["fields"][0]["field"] == "query.window"
