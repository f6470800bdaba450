"""Rates of keys over several gateways: each counts for itself and informs the others through a database.

No request waits for the database. A bucket there is what all gateways took so far; until the next exchange a gateway
does not know what the others take, so a limit can be exceeded by that much. While the database is unavailable, each
gateway enforces the whole limit for itself.
"""

from collections.abc import Mapping

from sqlalchemy import Column, Connection, Double, MetaData, Table, Text, bindparam, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import SQLAlchemyError

from app.errors import StorageUnavailable
from app.storage.database import open_database
from app.storage.rates import SharedRates
from app.threads import in_storage_thread

# `full_at`: Unix seconds by the clock of the database.
_TABLE = Table("rates", MetaData(), Column("key", Text, primary_key=True), Column("full_at", Double, nullable=False))
_NOW = func.extract("epoch", func.clock_timestamp()).cast(Double)
_TAKE = insert(_TABLE).values(key=bindparam("key"), full_at=_NOW + bindparam("taken_s", type_=Double))
_TAKE = _TAKE.on_conflict_do_update(
    index_elements=[_TABLE.c.key],
    set_={"full_at": func.greatest(_TABLE.c.full_at, _NOW) + bindparam("taken_s", type_=Double)},
)
_LEVELS = select(_TABLE.c.key, _TABLE.c.full_at - _NOW).where(_TABLE.c.full_at > _NOW)


def _prepare(connection: Connection) -> None:
    _TABLE.metadata.create_all(connection)


class FleetRates:
    """Exchanges what this worker's keys took with all others that use a PostgreSQL database."""

    def __init__(self, rates: SharedRates, where: str) -> None:
        """`where` is the URL of the database. Blocks."""
        self._rates = rates
        self._database = open_database(where, _prepare, setting="FETCHWISE_KEYS")

    async def exchange(self) -> None:
        """Send what was taken since the last time, and learn what others took; StorageUnavailable if it fails."""
        taken = self._rates.taken()
        try:
            levels = await in_storage_thread(self._send, taken)
        except SQLAlchemyError as error:
            for key, seconds in taken.items():
                self._rates.of(key).taken_s += seconds
            raise StorageUnavailable(f"the rates in {self._database.name}: {getattr(error, 'orig', error)}") from error
        for key, full_in_s in levels.items():
            self._rates.of(key).at_least(full_in_s)

    def _send(self, taken: Mapping[str, float]) -> dict[str, float]:
        with self._database.writing() as connection:
            # In order, so that no two workers wait for each other.
            for key in sorted(taken):
                connection.execute(_TAKE, {"key": key, "taken_s": taken[key]})
            return {key: float(full_in_s) for key, full_in_s in connection.execute(_LEVELS)}
