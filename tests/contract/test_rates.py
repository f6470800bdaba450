"""What rates promise to the workers of one gateway, and to gateways that share a database."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from app.errors import StorageError
from app.storage.fleet_rates import FleetRates
from app.storage.rates import SharedRates
from tests.e2e.postgres import PostgresServer

KEY, OTHER = "aaaaaaaaaaaa", "bbbbbbbbbbbb"
Exchange = Callable[[], Awaitable[None]]
Pair = tuple[SharedRates, SharedRates, Exchange]


async def _at_once() -> None:
    """Workers see the same memory."""


@pytest.fixture(params=["workers", pytest.param("gateways", marks=pytest.mark.e2e)])
async def pair(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Pair]:
    """The rates of two processes, and what lets them learn of each other."""
    several = request.param == "gateways"
    folders = [tmp_path / "one", tmp_path / ("other" if several else "one")]
    for folder in folders:
        folder.mkdir(exist_ok=True)
    one, other = (SharedRates(folder) for folder in folders)
    if not several:
        yield one, other, _at_once
    else:
        server: PostgresServer = request.getfixturevalue("postgres")
        where = server.database()
        fleet = [FleetRates(rates, where) for rates in (one, other)]

        async def exchange() -> None:
            for each in (*fleet, fleet[0]):
                await each.exchange()

        yield one, other, exchange
    one.close()
    other.close()


def taken(rates: SharedRates, times: int, key: str = KEY, per_minute: int = 6) -> int:
    """How many of so many requests were let in."""
    return sum(rates.of(key).take(per_minute) == 0.0 for _ in range(times))


async def test_what_one_takes_is_gone_for_the_other(pair: Pair) -> None:
    """Together they get one minute's requests; then both get the time to wait."""
    one, other, exchange = pair
    assert taken(one, 4) == 4
    await exchange()
    assert taken(other, 10) == 2
    await exchange()
    for rates in (one, other):
        assert 0.0 < rates.of(KEY).take(6) <= 10.0


async def test_keys_are_counted_apart(pair: Pair) -> None:
    """A key that used up its own limit does not touch another's."""
    one, other, exchange = pair
    assert taken(one, 20) == 6
    await exchange()
    assert taken(other, 20, OTHER) == 6
    await exchange()
    assert taken(one, 1, OTHER) == 0


async def test_nothing_is_counted_twice(pair: Pair) -> None:
    """However often they exchange, what was taken counts once."""
    one, other, exchange = pair
    for _ in range(2):
        assert taken(one, 1) == taken(other, 1) == 1
        await exchange()
        await exchange()
    assert taken(one, 20) == 2


@pytest.mark.e2e
async def test_a_limit_holds_while_the_database_is_away(tmp_path: Path, postgres: PostgresServer) -> None:
    """Each gateway enforces it alone meanwhile, and shares its counts afterwards."""
    where = postgres.database()
    (tmp_path / "later").mkdir()
    with (
        closing(SharedRates(tmp_path)) as rates,
        closing(SharedRates(tmp_path / "later")) as later,
        psycopg.connect(where.replace("+psycopg", ""), autocommit=True) as server,
    ):
        fleet, elsewhere = FleetRates(rates, where), FleetRates(later, where)
        server.execute("ALTER TABLE rates RENAME TO gone")
        assert taken(rates, 20) == 6
        with pytest.raises(StorageError, match="the rates in postgresql"):
            await fleet.exchange()
        server.execute("ALTER TABLE gone RENAME TO rates")
        await fleet.exchange()
        await elsewhere.exchange()
        assert taken(later, 20) == 0
