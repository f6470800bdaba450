"""The tools of the drills do what they say."""

import socket

import pytest
from sqlalchemy import create_engine, text

from tests.drills.hosts import Host
from tests.drills.servers import accepts
from tests.e2e.postgres import PostgresServer

pytestmark = pytest.mark.drill


def test_host_that_is_cut_off_swallows_packets(far_host: Host, far_postgres: PostgresServer) -> None:
    """A connection attempt gets no reply at all, and works again afterwards."""
    assert accepts(5432, far_host.address)
    far_host.cut_off()
    with pytest.raises(TimeoutError):
        socket.create_connection((far_host.address, 5432), 1)
    far_host.reconnect()
    assert _one(far_postgres.url()) == 1


def test_pgbouncer_passes_queries_on(pooled_postgres: str) -> None:
    """A query reaches PostgreSQL."""
    assert _one(pooled_postgres) == 1


def _one(url: str) -> object:
    engine = create_engine(url)
    try:
        with engine.connect() as connection:
            return connection.execute(text("SELECT 1")).scalar()
    finally:
        engine.dispose()
