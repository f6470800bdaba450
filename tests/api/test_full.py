"""`style: full`: the policy decides on the short answer, then it is written out."""

import asyncio
from typing import Any

import pytest

from app.errors import UpstreamUnavailable
from tests.fakes.gateway import ASKED, FakeGateway

from .conftest import Open

ALWAYS: dict[str, Any] = {"policy": "always", "style": "full"}


def says(gateway: FakeGateway, text: str, *, finish_reason: str = "stop") -> None:
    """Script what the reader writes."""
    message = {"role": "assistant", "content": text}
    gateway.reader.choices = [{"index": 0, "message": message, "finish_reason": finish_reason}]


async def test_decision_is_that_of_the_short_answer(gateway: FakeGateway) -> None:
    """The same steps, and the same confidence and certificate, of the short answer; none is that of the long text."""
    short = await gateway.receipt()
    full = await gateway.receipt(style="full")
    assert (short["style"], short["sentences"], short["decision"]["short_answer"]) == ("short", [], None)
    assert (full["style"], full["mode"], full["confidence"]) == ("full", "answer", None)
    assert full["decision"].pop("short_answer") == {"text": short["answer"], "confidence": short["confidence"]}
    assert short["decision"].pop("short_answer") is None
    assert full["decision"] == short["decision"]
    assert full["decision"]["calibrator"]["certified"] is True
    assert full["usage"]["write"]["completion_tokens"] > 0
    assert full["timings_ms"]["write"] is not None


async def test_sentences_are_judged_by_the_passages(gateway: FakeGateway) -> None:
    """Each with its support, passage and log-probability; only passages that were read stay cited."""
    says(gateway, "It is Franville [9]. The moon is made of cheese [1, 7].")
    receipt = await gateway.receipt(**ALWAYS)
    number = next(one["index"] for one in receipt["citations"] if one["title"] == "France")
    assert receipt["answer"] == f"It is Franville. [{number}] The moon is made of cheese [1]."
    first, second = receipt["sentences"]
    assert (first["support"], first["passage"], first["logprob"], first["mark"]) == (1.0, number, -0.125, "supported")
    assert (second["support"], second["passage"], second["mark"]) == (0.0, None, "unsupported")
    assert receipt["usage"]["passages"] == 10


async def test_reader_is_asked_with_the_short_answer_and_its_passages(gateway: FakeGateway) -> None:
    """With the default length, and with that of the request; the short answer keeps its own."""
    receipt = await gateway.receipt(**ALWAYS)
    await gateway.receipt(**ALWAYS, max_tokens=1000)
    first, second = gateway.reader.chats
    content = first["messages"][0]["content"]
    assert (first["max_tokens"], second["max_tokens"]) == (300, 1000)
    assert (first["temperature"], first["logprobs"]) == (0, True)
    assert all(f"[{one['index']}] {one['title']}: {one['text']}" in content for one in receipt["citations"])
    assert f"{ASKED}\n\nThe answer is: {receipt['decision']['short_answer']['text']}" in content
    assert receipt["decision"]["reason"] == "retrieval_required"


async def test_without_passages_nothing_is_supported(gateway: FakeGateway) -> None:
    """A closed-book answer is written out from memory, and cites nothing."""
    says(gateway, "It is Paris [1].")
    receipt = await gateway.receipt(policy="never", style="full")
    assert receipt["answer"] == "It is Paris."
    assert [(one["support"], one["passage"], one["mark"]) for one in receipt["sentences"]] == [
        (None, None, "unsupported")
    ]


async def test_withheld_answer_is_not_written(gateway: FakeGateway) -> None:
    """No call to write, and nothing of the answer is sent."""
    gateway.reader.says(ASKED, "It is Lyon.", sure=0.1)
    events = await gateway.events(style="full")
    assert [name for name, _ in events if name == "token"] == []
    receipt = events[-1][1]
    assert (receipt["answer"], receipt["abstained"], receipt["sentences"]) == (None, True, [])
    assert gateway.reader.chats == []


async def test_stream_is_the_text_of_the_receipt(gateway: FakeGateway) -> None:
    """Steps, passages, the text in pieces, and the receipt; the short answer is not sent."""
    says(gateway, "It is Franville [9]. It is [1] large.")
    events = await gateway.events(**ALWAYS)
    names = [name for name, _ in events]
    assert names[: names.index("token")] == ["step", "step", "step", "passages"]
    assert names.count("token") > 2
    assert "".join(data["text"] for name, data in events if name == "token") == events[-1][1]["answer"]


@pytest.mark.parametrize("text", ["", " \n"])
async def test_short_answer_where_nothing_is_written(gateway: FakeGateway, text: str) -> None:
    """With its own confidence."""
    says(gateway, text)
    short = await gateway.receipt()
    full = await gateway.receipt(style="full")
    assert [full[name] for name in ("style", "answer", "confidence")] == ["short", short["answer"], short["confidence"]]


async def test_short_answer_where_writing_fails(gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that is gone before anything is shown costs the text, not the answer."""

    async def gone(*_: object) -> None:
        raise UpstreamUnavailable("reader", "the reader is gone")

    monkeypatch.setattr(gateway.reader, "_chosen", gone)
    events = await gateway.events(style="full")
    receipt = events[-1][1]
    assert receipt["style"] == "short"
    assert [data["text"] for name, data in events if name == "token"] == [receipt["answer"]]


async def test_what_was_shown_is_not_taken_back(gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that breaks off ends the stream with an error."""
    says(gateway, "It is Franville. It is large.")
    whole = gateway.reader.chat_stream

    async def broken_off(body: Any) -> Any:
        async for event in whole(body):
            yield event
            if "Franville" in str(event):
                raise UpstreamUnavailable("reader", "the reader breaks off")

    monkeypatch.setattr(gateway.reader, "chat_stream", broken_off)
    events = await gateway.events(**ALWAYS)
    assert [name for name, _ in events][-2:] == ["token", "error"]
    assert events[-1][1]["error"]["type"] == "upstream_unavailable"


async def test_text_ends_where_it_repeats_itself(gateway: FakeGateway) -> None:
    """Small readers write a sentence again and again."""
    says(gateway, "It is a city. " * 20)
    receipt = await gateway.receipt(**ALWAYS)
    assert receipt["answer"] == "It is a city. It is a city."
    assert receipt["truncated"] is False
    assert receipt["usage"]["write"]["prompt_tokens"] > 0


async def test_limit_that_the_reader_ignores(gateway: FakeGateway) -> None:
    """The text ends there, and the receipt says so."""
    says(gateway, "a b c d e f g h")
    receipt = await gateway.receipt(**ALWAYS, max_tokens=4)
    assert receipt["truncated"] is True
    assert len(receipt["answer"].split()) <= 5


async def test_passages_that_do_not_fit_are_dropped(open_gateway: Open) -> None:
    """The receipt cites those that the text was written from."""
    async with open_gateway() as gateway:
        gateway.reader._context_chars = 400
        receipt = await gateway.receipt(**ALWAYS)
        assert receipt["style"] == "full"
        assert (
            len(receipt["citations"]) == gateway.reader.chats[-1]["messages"][0]["content"].count("The capital of") - 1
        )


async def test_no_verdict_is_asked_for(open_gateway: Open) -> None:
    """A verdict would be about the long text. The log has the short answer, which the decision is about."""
    async with open_gateway(artifact={}, solicit_share=1.0) as gateway:
        assert (await gateway.receipt())["feedback_wanted"] is True
        full = await gateway.receipt(style="full")
        assert full["feedback_wanted"] is False
        await gateway.client.post("/feedback", json={"id": full["id"], "correct": True})
        assert gateway.logged("decisions")[-1]["answer"] == full["decision"]["short_answer"]["text"]


@pytest.mark.parametrize("slow", [False, True])
async def test_short_answer_where_nobody_saw_the_text(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch, *, slow: bool
) -> None:
    """The reader breaks off, or the time passes, after text that was not streamed."""
    says(gateway, "It is Franville. It is large.")
    whole = gateway.reader.chat_stream

    async def broken_off(body: Any) -> Any:
        async for event in whole(body):
            yield event
            if "Franville" in str(event):
                if slow:
                    await asyncio.Event().wait()
                raise UpstreamUnavailable("reader", "the reader breaks off")

    monkeypatch.setattr(gateway.reader, "chat_stream", broken_off)
    receipt = await gateway.receipt(**ALWAYS, timeout_ms=300)
    assert (receipt["style"], receipt["sentences"]) == ("short", [])
    assert receipt["answer"]
