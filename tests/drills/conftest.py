"""What the drills share: real gateways on simulated upstreams, load, load balancers and hosts that can be cut off.

Each drill makes one fault happen and checks what callers see, by counts and the order of events. Variants that take
longer are marked `slow`: CI leaves them out, `make drills` runs everything.
"""

from collections.abc import Iterator

import pytest

from tests.drills.hosts import Host, host
from tests.drills.pgbouncer import pgbouncer
from tests.e2e.postgres import PostgresServer, postgres_server
from tests.wire.paper_costs import QUICK, PaperUpstream, paper_upstream


@pytest.fixture
def upstream() -> Iterator[PaperUpstream]:
    """Upstreams that answer at once."""
    with paper_upstream(QUICK) as serving:
        yield serving


@pytest.fixture
def far_host() -> Iterator[Host]:
    """Another host, which can be cut off."""
    with host() as other:
        yield other


@pytest.fixture
def far_postgres(far_host: Host) -> Iterator[PostgresServer]:
    """PostgreSQL on the other host."""
    with postgres_server(inside=far_host) as server:
        yield server


@pytest.fixture
def pooled_postgres(postgres: PostgresServer) -> Iterator[str]:
    """The URL of an empty database behind PgBouncer."""
    with pgbouncer(postgres) as url:
        yield url
