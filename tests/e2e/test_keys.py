"""Keys on real processes: created, limited and revoked for all workers at once, and used by a real browser."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import expect

from tests.e2e.browser import PATIENCE_MS, chromium
from tests.e2e.processes import Gateway, fetchwise, from_each_worker, gateway
from tests.fakes.keys import bearer
from tests.waiting import wait_until
from tests.wire.paper_costs import PaperUpstream

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
WORKERS = 3
ASKED = {"question": "What is number 7?"}


@pytest.fixture
def running(tmp_path: Path, upstream: PaperUpstream) -> Iterator[Gateway]:
    """Three workers on simulated upstreams, on a loopback address, without keys."""
    asyncio.run(upstream.publish_gate(tmp_path / "calibrators"))
    chosen = upstream.settings(tmp_path / "calibrators") | {"workers": str(WORKERS), "log_level": "debug"}
    with gateway(tmp_path, **chosen) as one:
        yield one


def create(running: Gateway, *options: str) -> str:
    """Create a key next to the running gateway, as an operator would."""
    done = fetchwise("keys", "create", "tester", *options, env=running.env)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def everywhere(running: Gateway, ask: Callable[[httpx.Client], int]) -> set[int]:
    """The statuses that the workers reply with."""
    return set(from_each_worker(running, WORKERS, ask).values())


def eventually_everywhere(running: Gateway, status: int, ask: Callable[[httpx.Client], int]) -> None:
    """Wait until every worker replies with this status."""
    wait_until(lambda: everywhere(running, ask) == {status}, f"not every worker replies with {status}")


def test_keys_apply_to_every_worker(running: Gateway, tmp_path: Path) -> None:
    """The first key turns them on, limits are shared, and a revocation holds; no file of the gateway has the secret."""

    def without(client: httpx.Client) -> int:
        return client.post("/answer", json=ASKED).status_code

    assert everywhere(running, without) == {200}
    presented = create(running)
    limited = create(running, "--per-minute", "30")
    eventually_everywhere(running, 401, without)

    def answered(client: httpx.Client) -> int:
        return client.post("/answer", json=ASKED, headers=bearer(presented)).status_code

    eventually_everywhere(running, 200, answered)
    eventually_everywhere(running, 403, lambda client: client.get("/metrics", headers=bearer(limited)).status_code)

    # New connections, so all workers get some; a bucket holds 30, and gains one every two seconds.
    began = time.monotonic()
    statuses: Counter[int] = Counter()
    for _ in range(60):
        reply = httpx.post(f"{running.url}/answer", json=ASKED, headers=bearer(limited), timeout=30)
        statuses[reply.status_code] += 1
        assert reply.status_code == 200 or 1 <= int(reply.headers["retry-after"]) <= 2
    refilled = (time.monotonic() - began) / 2
    assert statuses.keys() == {200, 429}
    # Two workers could take the same one at the same moment, but these calls are sequential.
    assert 30 <= statuses[200] <= 30 + refilled + 1

    done = fetchwise("keys", "revoke", presented, env=running.env)
    assert done.returncode == 0, done.stderr
    eventually_everywhere(running, 401, answered)
    secrets = [key.split("_", 2)[2].encode() for key in (presented, limited)]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"gateway.log", "keys.json", "decisions.sqlite3"} <= {path.name for path in files}
    assert not [path for path in files for secret in secrets if secret in path.read_bytes()]


def test_pages_with_keys(running: Gateway) -> None:
    """The ask page takes a key once; the dashboard takes it as the browser's password, and so do its figures."""
    answerer, operator = create(running), create(running, "--scope", "operate")
    eventually_everywhere(running, 401, lambda client: client.get("/breakeven").status_code)
    with chromium() as browser:
        page = browser.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.goto(running.url)
        page.get_by_label("Your question").fill(ASKED["question"])
        page.get_by_label("Your question").press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("needs a key")
        page.get_by_label("Key").fill(answerer)
        page.get_by_role("button", name="Use it").click()
        expect(page.locator("#given")).to_be_visible(timeout=PATIENCE_MS)
        expect(page.locator("#otherwise")).to_contain_text("scope operate", timeout=PATIENCE_MS)
        page.close()

        for password, status in ((operator, 200), (answerer, 403), ("wrong", 401)):
            context = browser.new_context(http_credentials={"username": "anyone", "password": password})
            page = context.new_page()
            page.set_default_timeout(PATIENCE_MS)
            reply = page.goto(f"{running.url}/dashboard")
            assert reply is not None
            assert reply.status == status
            if status == 200:
                expect(page.locator("#freshness")).to_contain_text("Updated at", timeout=PATIENCE_MS)
                expect(page.locator("#trouble")).to_be_hidden()
            context.close()
