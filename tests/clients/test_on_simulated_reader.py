"""Real client libraries, at their defaults, with a reader that calls tools and writes JSON: nothing is refused."""

import pytest

from .programs import EVERY, Programs

pytestmark = [pytest.mark.clients, pytest.mark.timeout(1200)]


@pytest.mark.parametrize(("client", "scenario"), EVERY)
def test_client(simulated: Programs, client: str, scenario: str) -> None:
    """The library can do this."""
    assert simulated.outcome(client, scenario) == ""
