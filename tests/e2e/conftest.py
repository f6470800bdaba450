"""Simulated upstreams for the end-to-end tests. The tests of one file share what is slow to start."""

from collections.abc import Iterator

import pytest

from tests.wire.paper_costs import QUICK, PaperUpstream, paper_upstream


@pytest.fixture
def upstream() -> Iterator[PaperUpstream]:
    """Upstreams that answer at once."""
    with paper_upstream(QUICK) as serving:
        yield serving
