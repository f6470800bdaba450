"""Real client libraries, at their defaults, against whole gateways: nothing that they send is refused."""

import pytest

from .programs import EVERY, Programs

pytestmark = [pytest.mark.clients, pytest.mark.timeout(1200)]


@pytest.mark.parametrize(("client", "scenario"), EVERY)
def test_on_a_reader_that_calls_tools(simulated: Programs, client: str, scenario: str) -> None:
    """Each library can do this with a reader that calls tools and writes JSON."""
    assert simulated.outcome(client, scenario) == ""


@pytest.mark.parametrize(("client", "scenario"), EVERY)
def test_on_the_embedded_reader(embedded: Programs, client: str, scenario: str) -> None:
    """Each library can do this with the embedded reader."""
    assert embedded.outcome(client, scenario) == ""
