"""`stream: true` over HTTP: what is said when, what is never said, and what an end in mid-stream looks like."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from app.errors import UpstreamUnavailable
from tests.fakes.gateway import FakeGateway

from .conftest import Open
from .test_errors import check_shape
from .test_operations import metrics, sample

ASKED = "What is the secret?"
SECRET = "It is the forty second word."
# Confidences of every region of the fake artifact's thresholds: 0.25 abstain, 0.5 five, 0.75 one.
CONFIDENT, BORDERLINE, UNCERTAIN, HOPELESS = 0.9, 0.6, 0.4, 0.1

Event = tuple[str, dict[str, Any]]


async def streamed(gateway: FakeGateway, **more: Any) -> list[Event]:
    """The events of one question."""
    response = await gateway.client.post("/answer", json={"question": ASKED, "stream": True} | more)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return parsed(response)


def parsed(response: httpx.Response) -> list[Event]:
    events = []
    for block in response.text.strip().split("\n\n"):
        name, data = block.split("\n", 1)
        events.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return events


def told(events: list[Event]) -> str:
    """What the asker has read by the end."""
    return "".join(data["text"] for name, data in events if name == "token").strip()


@pytest.mark.parametrize("sure", [CONFIDENT, BORDERLINE, UNCERTAIN, HOPELESS])
@pytest.mark.parametrize("policy", ["graded", "always", "never"])
@pytest.mark.parametrize("abstain", [True, False])
async def test_streaming_and_not_streaming_answer_the_same(
    gateway: FakeGateway, sure: float, policy: str, abstain: bool
) -> None:
    """Answer, action, confidence and reason are those of the receipt; the tokens are the answer."""
    gateway.reader.says(ASKED, SECRET, sure=sure)
    asked = {"question": ASKED, "policy": policy, "abstain": abstain}
    plain = (await gateway.client.post("/answer", json=asked)).json()
    events = await streamed(gateway, policy=policy, abstain=abstain)
    name, final = events[-1]
    assert name == "final"
    for field in ("answer", "action", "k", "confidence", "citations", "usage"):
        assert final[field] == plain[field], field
    assert final["decision"] == plain["decision"]
    assert told(events) == (plain["answer"] or "")
    assert events[0][0] == "decision"
    assert events[0][1]["k"] == plain["k"]
    assert [name for name, _ in events].count("passages") == (1 if plain["k"] else 0)


async def test_a_withheld_answer_never_leaks_a_token(gateway: FakeGateway) -> None:
    """Not a word of it is in the stream, whichever way it was read."""
    for policy in ("graded", "always", "never"):
        gateway.reader.says(ASKED, SECRET, sure=HOPELESS)
        events = await streamed(gateway, policy=policy)
        assert events[-1][1]["action"] == "abstain"
        assert not any(name == "token" for name, _ in events)
        assert "forty" not in json.dumps([event for event in events if event[0] != "passages"])


async def test_tokens_come_as_they_are_read_where_nothing_can_withhold_them(gateway: FakeGateway) -> None:
    """With `abstain: false` each piece is an event; where the confidence must be known first, there is one."""
    gateway.reader.says(ASKED, SECRET, sure=UNCERTAIN)
    live = await streamed(gateway, abstain=False)
    held = await streamed(gateway)
    assert sum(name == "token" for name, _ in live) == 6
    assert sum(name == "token" for name, _ in held) == 1


async def test_what_fails_before_the_first_event_is_a_status(gateway: FakeGateway) -> None:
    """A reader that is down is a 503 in the one shape, not a stream."""
    gateway.reader.fail_with = UpstreamUnavailable("reader", "down")
    response = await gateway.client.post("/answer", json={"question": ASKED, "stream": True})
    check_shape(response, 503, "upstream_unavailable")


async def test_what_fails_in_mid_stream_is_an_event_of_the_same_shape(gateway: FakeGateway) -> None:
    """After the decision the status is sent: the error is the last event, and counted like any other."""
    gateway.reader.says(ASKED, SECRET, k=0, sure=UNCERTAIN)
    gateway.reader.fail_with, gateway.reader.fail_on_k = UpstreamUnavailable("reader", "gone"), 5
    events = await streamed(gateway)
    assert [name for name, _ in events] == ["decision", "passages", "error"]
    assert events[-1][1] == {"error": {"type": "upstream_unavailable", "message": "gone", "fields": []}}
    assert sample(await metrics(gateway), "upstream_errors_total", upstream="reader", kind="unavailable") == 1


async def test_a_stream_holds_its_permit_to_the_end_and_gives_it_back(open_gateway: Open) -> None:
    """The next is refused while it runs, and served afterwards, also where it failed."""
    async with open_gateway(artifact={}, max_in_flight=1, queue=0) as gateway:
        begun = asyncio.Event()
        gateway.reader.hang, gateway.reader.before = True, lambda _: begun.set()
        first = asyncio.create_task(gateway.client.post("/answer", json={"question": ASKED, "stream": True}))
        await begun.wait()
        refused = await gateway.client.post("/answer", json={"question": ASKED, "stream": True})
        check_shape(refused, 429, "overloaded")
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        gateway.reader.hang = False
        assert (await streamed(gateway))[-1][0] == "final"
        assert sample(await metrics(gateway), "in_flight") == 0


async def test_a_slow_question_ends_in_time(open_gateway: Open) -> None:
    """The limit on all stages together holds for streams."""
    async with open_gateway(artifact={}, request_timeout_s=0.05) as gateway:
        gateway.reader.hang = True
        response = await gateway.client.post("/answer", json={"question": ASKED, "stream": True})
        check_shape(response, 503, "deadline_passed")
