"""`stream: true` over HTTP; the golden walks hold what is said when, the properties what is never said."""

from app.errors import UpstreamUnavailable
from tests.fakes.gateway import Event, events_of

from .conftest import Open

parsed = events_of


def told(events: list[Event]) -> str:
    """What the asker has read by the end."""
    return "".join(data["text"] for name, data in events if name == "token").strip()


async def test_a_stream_gives_its_permit_back(open_gateway: Open) -> None:
    """The next is served, whether it came to its end or failed on the way; the failure is counted."""
    async with open_gateway(artifact={}, max_in_flight=1, queue=0) as gateway:
        events = await gateway.events()
        assert told(events) == events[-1][1]["answer"]
        gateway.reader.says("Who?", "Nobody", k=0, sure=0.4)
        gateway.reader.fail_with, gateway.reader.fail_on_k = UpstreamUnavailable("reader", "gone"), 5
        assert (await gateway.events("Who?"))[-1][0] == "error"
        assert await gateway.metric("upstream_errors_total", upstream="reader", kind="unavailable") == 1
        assert (await gateway.events())[-1][0] == "final"
        assert await gateway.metric("in_flight") == 0
