"""Simulated parts for the end-to-end tests. What costs more to start is shared by the tests of one file."""

from collections.abc import Iterator

import pytest

from tests.wire.paper_costs import QUICK, PaperUpstream, paper_upstream


@pytest.fixture
def upstream() -> Iterator[PaperUpstream]:
    """Parts that answer at once."""
    with paper_upstream(QUICK) as serving:
        yield serving
