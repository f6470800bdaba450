"""What the end-to-end tests share: one embedded gateway, and simulated parts.

With `--dist loadgroup` each file runs in one process, and all that use the embedded gateway in the same one.
"""

from collections.abc import Iterator

import pytest

from tests.e2e.processes import REPO, Gateway, gateway
from tests.wire.paper_costs import QUICK, PaperUpstream, paper_upstream

KNOWN = "What is the capital of Egypt?"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep what shares a fixture together; before pytest-xdist reads the groups."""
    for item in items:
        shared = "demo" if "demo" in getattr(item, "fixturenames", ()) else item.nodeid.partition("::")[0]
        item.add_marker(pytest.mark.xdist_group(shared))


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """The embedded default with the demo world, exactly as `make serve` starts it."""
    with gateway(tmp_path_factory.mktemp("demo"), seed=str(REPO / "demo/passages.jsonl")) as one:
        # One answer, so that no test of the dashboard depends on those before it.
        assert one.ask(KNOWN).status_code == 200
        yield one


@pytest.fixture
def upstream() -> Iterator[PaperUpstream]:
    """Parts that answer at once."""
    with paper_upstream(QUICK) as serving:
        yield serving
