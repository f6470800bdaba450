"""Gateways that share a PostgreSQL database and no disk: calibrators, keys and their limits are the same for all."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from app.access.keys import Scope
from app.calibrators.store import ArtifactStore
from app.wiring.gateway import key_file
from tests.e2e.postgres import PostgresServer
from tests.fakes.gateway import FakeGateway, fake_gateway, matching
from tests.fakes.keys import bearer, make_key
from tests.waiting import until

pytestmark = pytest.mark.e2e
ASK = {"question": "What is the capital of France?"}


@pytest.fixture
def database(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> str:
    for name in ("KEYS_EVERY_S", "RATES_EVERY_S", "CALIBRATOR_EVERY_S"):
        monkeypatch.setattr(f"app.wiring.gateway.{name}", 0.02)
    return postgres.database()


@asynccontextmanager
async def two_gateways(tmp_path: Path, **settings: Any) -> AsyncIterator[tuple[FakeGateway, FakeGateway]]:
    async with (
        fake_gateway(tmp_path / "one", **settings) as one,
        fake_gateway(tmp_path / "other", **settings) as other,
    ):
        yield one, other


async def test_keys_and_their_limits(tmp_path: Path, database: str) -> None:
    """A key that is created or revoked counts everywhere, and its requests are counted together."""
    made, presented = make_key(database, per_minute=3)
    make_key(database, "operator", scopes=[Scope.OPERATE])
    async with two_gateways(tmp_path, keys=database) as (one, other):

        async def status(gateway: FakeGateway) -> int:
            return (await gateway.client.post("/answer", json=ASK, headers=bearer(presented))).status_code

        assert (await one.client.post("/answer", json=ASK)).status_code == 401
        assert [await status(one) for _ in range(4)] == [200, 200, 200, 429]

        async def refused() -> bool:
            return await status(other) == 429

        await until(refused)
        key_file(database).revoke(made.id)

        async def unknown() -> bool:
            return await status(one) == await status(other) == 401

        await until(unknown)


async def test_calibrators(tmp_path: Path, database: str) -> None:
    """A version that is promoted or rolled back in the database is served by every gateway."""
    store = ArtifactStore(database)
    async with two_gateways(tmp_path, calibrators=database) as (one, other):

        async def promoted(version: str) -> None:
            for gateway in (one, other):

                async def serving(gateway: FakeGateway = gateway) -> bool:
                    return bool((await gateway.client.get("/calibrators")).json()["serving"] == version)

                await until(serving)

        for version in ("first", "second"):
            store.publish(await matching(one.reader, one.embedder, version=version))
            store.promote(version)
            await promoted(version)
        store.rollback()
        await promoted("first")
        found = (await other.client.get("/calibrators")).json()
        assert [(each["version"], each["by"]) for each in found["changes"]] == [
            ("first", "rollback"),
            ("second", "promote"),
            ("first", "promote"),
        ]
