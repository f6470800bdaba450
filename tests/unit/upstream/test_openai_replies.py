"""Replies of a reader that nobody can trust: what is taken from them, and what is not."""

import math
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from app.core.signals import NAMES, extract
from app.errors import UpstreamUnavailable
from app.ports import Generation
from app.upstream.http import HttpClient
from app.upstream.openai_replies import CHARS_PER_TOKEN, assemble, events_of, generation

TOP = [-0.5 - rank for rank in range(20)]
# Numbers that are no number of tokens.
NO_COUNTS = [-1, -(2**70), 2**63, 10**9, 10**400, 1.5, "7", True, None, [], math.nan]


def token(text: str, **changed: Any) -> dict[str, Any]:
    """A token as servers report it."""
    alternatives = [{"token": "t", "logprob": logprob} for logprob in TOP]
    return {"token": text, "logprob": TOP[0], "bytes": list(text.encode()), "top_logprobs": alternatives} | changed


def reply(
    content: str, tokens: Sequence[Any], *, usage: Any = None, finish: str = "stop", **changed: Any
) -> dict[str, Any]:
    """A whole reply."""
    choice = {"message": {"content": content}, "logprobs": {"content": list(tokens)}, "finish_reason": finish}
    return {"choices": [choice | changed], "usage": usage or {"prompt_tokens": 9, "completion_tokens": len(tokens)}}


def chunk(text: str, *tokens: Any, **changed: Any) -> dict[str, Any]:
    """One event of a streamed reply."""
    return {"choices": [{"delta": {"content": text}, "logprobs": {"content": list(tokens)}}]} | changed


async def streamed(
    *events: dict[str, Any], max_tokens: int = 24, left: list[dict[str, Any]] | None = None
) -> tuple[str, Generation]:
    """The text that was streamed, and the whole answer; `left` gets the events that were not read."""
    waiting = list(events)

    async def coming() -> AsyncIterator[dict[str, Any]]:
        while waiting:
            yield waiting.pop(0)

    *pieces, whole = [item async for item in assemble(coming(), 0, max_tokens, 0)]
    assert isinstance(whole, Generation)
    if left is not None:
        left += waiting
    return "".join(piece for piece in pieces if isinstance(piece, str)), whole


async def both(content: str, tokens: Sequence[Any], **changed: Any) -> list[Generation]:
    """The answer of a whole reply, and of the same reply in one event."""
    whole = generation(reply(content, tokens, **changed), 0, 24)
    return [whole, (await streamed(chunk(content, *tokens, **changed)))[1]]


async def test_signals_of_an_ordinary_reply() -> None:
    """Every signal is there: the tests below take them away."""
    for answer in await both("It is", [token("It"), token(" is")]):
        assert answer.text == "It is"
        assert extract(answer.tokens).keys() >= set(NAMES)


IMPOSSIBLE: dict[str, list[Any]] = {
    "positive": [token("It", logprob=5), token(" is")],
    "true": [token("It", logprob=True), token(" is")],
    "a word": [token("It", logprob="-0.1"), token(" is")],
    "null": [token("It", logprob=None), token(" is")],
    "no number": [{"token": "It", "bytes": [73, 116]}, token(" is")],
    "no token": [None, token(" is")],
    "a positive alternative": [token("It", top_logprobs=[{"logprob": 3.0}] * 20), token(" is")],
    "a true alternative": [token("It", top_logprobs=[{"logprob": True}] * 20), token(" is")],
    "alternatives without numbers": [token("It", top_logprobs=[{}] * 20), token(" is")],
    "alternatives that are a number": [token("It", top_logprobs=7), token(" is")],
    "more likely than its alternatives": [token("It", logprob=-0.1), token(" is")],
    "less likely than its alternatives": [token("It", logprob=-50.0), token(" is")],
    "alternatives above one": [token("It", top_logprobs=[{"logprob": -0.1}] * 20), token(" is")],
    "the first token only": [token("It")],
    "the last token only": [token(" is")],
    "other tokens": [token("Yes"), token(", of course")],
    "bytes above 255": [token("It", bytes=[73, 300]), token(" is")],
}


@pytest.mark.parametrize("tokens", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
async def test_impossible_log_probabilities_are_no_signal(tokens: list[Any]) -> None:
    """The answer is given; nothing is concluded from its numbers."""
    for answer in await both("It is", tokens):
        assert answer.text == "It is"
        assert extract(answer.tokens) == {}


@pytest.mark.parametrize("logprobs", [5, "no", {"content": 7}, {"content": {"a": 1}}], ids=str)
async def test_log_probabilities_of_another_shape_are_no_signal(logprobs: Any) -> None:
    """Also where they are no list."""
    whole = generation(reply("It is", [], logprobs=logprobs), 0, 24)
    _, assembled = await streamed({"choices": [{"delta": {"content": "It is"}, "logprobs": logprobs}]})
    for answer in (whole, assembled):
        assert (answer.text, answer.tokens) == ("It is", ())


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        (" It is", [" It", " is"]),
        # Some tokenizers lose the space before a word when they decode one token.
        ("It is so", ["It", "is", "so", "</s>"]),
        # A character of several tokens: replaced in each, or empty until it is complete.
        ("São 🎉", ["S", "\ufffd", "o", " ", "\ufffd", "\ufffd"]),
        ("São 🎉", ["S", "", "ão", " ", "", "🎉"]),
    ],
)
async def test_tokens_that_spell_the_answer_are_its_signals(content: str, texts: list[str]) -> None:
    """Servers write tokens in different ways; none of these loses the signals."""
    for answer in await both(content, [token(text) for text in texts]):
        assert answer.text == content.strip()
        assert "seq_logprob" in extract(answer.tokens)


@pytest.mark.parametrize("wild", ["It", 10**12, {"a": 1}, True], ids=str)
async def test_bytes_that_are_no_bytes_are_ignored(wild: Any) -> None:
    """Then the token's text is what it spells."""
    for answer in await both("It is", [token("It", bytes=wild), token(" is")]):
        assert answer.text == "It is"
        assert extract(answer.tokens).keys() >= set(NAMES)


@pytest.mark.parametrize("count", NO_COUNTS, ids=lambda count: str(count)[:10])
async def test_impossible_counts_are_ignored(count: Any) -> None:
    """The tokens that are there are counted in their place."""
    tokens = [token("It"), token(" is")]
    for answer in await both("It is", tokens, usage={"prompt_tokens": count, "completion_tokens": count}):
        assert (answer.prompt_tokens, answer.completion_tokens) == (0, 2)
    _, assembled = await streamed(chunk("It is", *tokens, timings={"cache_n": count, "prompt_n": 5, "predicted_n": 3}))
    assert (assembled.prompt_tokens, assembled.completion_tokens) == (5, 3)


@pytest.mark.parametrize("usage", [7, "many", [1]], ids=str)
async def test_usage_of_another_shape_is_ignored(usage: Any) -> None:
    """So are timings."""
    for answer in await both("It", [token("It")], usage=usage):
        assert (answer.prompt_tokens, answer.completion_tokens) == (0, 1)
    _, assembled = await streamed(chunk("It", token("It"), timings=usage))
    assert (assembled.prompt_tokens, assembled.completion_tokens) == (0, 1)


@pytest.mark.parametrize(
    "pieces",
    [
        (" It", " is", " "),
        ("It", " ", " is"),
        ("It is\n", "Because I said so"),
        ("It is\nBeca", "use"),
        (" ", "\N{NO-BREAK SPACE}It", " is \t", "\n"),
        ("\n", "It is"),
        (" \nIt",),
        ("It is", "\r\n"),
    ],
)
async def test_stream_and_receipt_hold_the_same_text(pieces: tuple[str, ...]) -> None:
    """Also where the server does not stop at the end of the line."""
    text, assembled = await streamed(*(chunk(piece, token(piece)) for piece in pieces))
    whole = generation(reply("".join(pieces), [token(piece) for piece in pieces]), 0, 24)
    assert text == assembled.text == whole.text
    assert assembled.tokens == whole.tokens


async def test_stream_that_ignores_max_tokens_is_left() -> None:
    """What comes after them is neither read nor streamed; a whole reply is cut at the same place."""
    left: list[dict[str, Any]] = []
    text, assembled = await streamed(*(chunk(" no", token(" no")) for _ in range(100)), max_tokens=5, left=left)
    whole = generation(reply(" no" * 100, [token(" no")] * 100), 0, 5)
    assert text == assembled.text == whole.text == "no no no no no"
    assert assembled.truncated
    assert whole.truncated
    assert len(assembled.tokens) == len(whole.tokens) == 5
    assert len(left) == 94


@pytest.mark.parametrize("tokens", [[], [token("x")]], ids=["no tokens", "one token"])
async def test_length_of_an_answer_is_bounded(tokens: list[Any]) -> None:
    """By characters, whatever the server says about tokens; the rest of the stream is not read."""
    endless, most = "x" * 3000, 5 * CHARS_PER_TOKEN
    left: list[dict[str, Any]] = []
    text, assembled = await streamed(*(chunk(endless, *tokens) for _ in range(4)), max_tokens=5, left=left)
    whole = generation(reply(endless * 4, tokens), 0, 5)
    for answer in (assembled, whole):
        assert (answer.text, answer.truncated, extract(answer.tokens)) == ("x" * most, True, {})
    assert text == assembled.text
    assert len(left) == 3


async def test_second_answer_in_an_event_is_ignored() -> None:
    """After the end of the line nothing is added, also not from the same event."""
    first, second = chunk("It is\n", token("It is"))["choices"], chunk(" not", token(" not"))["choices"]
    text, assembled = await streamed({"choices": first + second})
    assert text == assembled.text == "It is"


class Lines:
    """The lines of a stream, as aiohttp yields them."""

    def __init__(self, *lines: bytes) -> None:
        self._lines = lines

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for line in self._lines:
            yield line


async def test_only_an_error_is_an_error() -> None:
    """Some servers send `"error": null` in every event."""
    client = HttpClient.of_openai("reader", "http://localhost", api_key=None, timeout_s=1)
    good = Lines(b'data: {"error": null, "choices": []}\n', b"data: [DONE]\n")
    assert [event async for event in events_of(good, client)] == [{"error": None, "choices": []}]  # type: ignore[arg-type]
    bad = Lines(b'data: {"error": {"message": "engine died"}}\n', b"data: [DONE]\n")
    with pytest.raises(UpstreamUnavailable, match="failed while answering"):
        [event async for event in events_of(bad, client)]  # type: ignore[arg-type]
