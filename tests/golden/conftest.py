"""The option that rewrites the golden files."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden/walks from what happens now")


@pytest.fixture
def updating(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are rewritten; never where the option was not known when pytest started."""
    return bool(request.config.getoption("--update-golden", default=False))
