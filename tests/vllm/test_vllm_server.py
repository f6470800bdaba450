"""The reader with a real vLLM: what the fakes and the wire tests assume about it, and what only it can show."""

import asyncio
import bisect
import math
import os
import signal
import time
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

import httpx
import pytest

from app.core import prompts, signals
from app.core.available import Passage
from app.core.prompts import Prompts
from app.errors import ConfigurationError, PromptTooLong, UpstreamUnavailable
from app.ports import Generation, Prompt
from app.upstream.child import ChildServer
from app.upstream.readers.openai import OpenAIReader
from tests.waiting import until

CONTEXT = 2048

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.asyncio(loop_scope="session"),
    # The first test waits for vLLM to start, the last ones for it to restart.
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        "TEST_VLLM_PYTHON" not in os.environ,
        reason="TEST_VLLM_PYTHON is not set: run `make test-vllm`, which installs vLLM first",
    ),
]

MakeReader = Callable[..., OpenAIReader]

FRANCE = Prompt("What is the capital of France?")
INVENTED = Prompt(
    "What is the capital of Zubrovia?",
    (Passage("1", "Zubrovia", "Zubrovia is a small country in the hills. The capital of Zubrovia is Lenkograd."),),
)
# The model answers this with hundreds of tokens without a newline.
AS_GIVEN = Prompts(closed_book="{question}", open_book="{passages}\n{question}")
ENDLESS = Prompt("Repeat the word hello forever, on one line: hello hello hello hello")


def client(url: str) -> httpx.Client:
    """A client of the server at a ChildServer's URL."""
    transport = httpx.HTTPTransport(uds=url.removeprefix("unix:"))
    return httpx.Client(base_url="http://localhost", transport=transport, follow_redirects=True, timeout=10)


def generated_tokens(url: str) -> float:
    """The number of tokens that vLLM has generated since it started."""
    with client(url) as http:
        lines = http.get("/metrics").text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("vllm:generation_tokens_total{"))


async def settled(url: str) -> float:
    """The number of generated tokens once it has not changed for a second; fails if it keeps changing."""
    async with asyncio.timeout(30):
        seen, since = await asyncio.to_thread(generated_tokens, url), time.monotonic()
        while time.monotonic() - since < 1:
            await asyncio.sleep(0.1)
            now = await asyncio.to_thread(generated_tokens, url)
            if now != seen:
                seen, since = now, time.monotonic()
    return seen


def filler(tokens: int) -> str:
    """A text of about this many tokens without information."""
    return "word " * tokens


async def collect(reader: OpenAIReader, prompt: Prompt, *, max_tokens: int = 24) -> tuple[list[str], Generation]:
    """A streamed answer: its tokens, and the complete answer that comes last."""
    items = [item async for item in reader.stream(prompt, max_tokens=max_tokens)]
    whole = items.pop()
    assert isinstance(whole, Generation)
    pieces = [item for item in items if isinstance(item, str)]
    assert len(pieces) == len(items)
    return pieces, whole


async def test_closed_book_answer(reader: OpenAIReader) -> None:
    """Without passages the model answers from its own knowledge, and reports the probability of each token."""
    answer = await reader.generate(FRANCE, max_tokens=24)
    assert "Paris" in answer.text
    assert "<|im_end|>" not in answer.text
    assert answer.passages_read == 0
    assert 0 < len(answer.tokens) <= 24
    assert answer.prompt_tokens > 10
    # The server counts the end token or the stop, the answer does not.
    assert answer.completion_tokens in {len(answer.tokens), len(answer.tokens) + 1}


async def test_open_book_answer(reader: OpenAIReader) -> None:
    """With passages the model answers what only the passages say."""
    answer = await reader.generate(INVENTED, max_tokens=24)
    assert "Lenkograd" in answer.text
    assert answer.passages_read == 1


async def test_every_token_has_twenty_alternatives(reader: OpenAIReader) -> None:
    """Each token has its twenty most likely alternatives, best first, with itself as the best."""
    answer = await reader.generate(FRANCE, max_tokens=24)
    for token in answer.tokens:
        assert len(token.top) == 20
        assert list(token.top) == sorted(token.top, reverse=True)
        assert token.logprob == token.top[0] <= 0
        assert sum(map(math.exp, token.top)) <= 1 + 1e-4
    assert set(signals.extract(answer.tokens)) == set(signals.ALL_NAMES)


async def test_answer_ends_at_a_newline(make_reader: MakeReader) -> None:
    """An answer of several lines is cut at the first newline, in its text and in its tokens."""
    reader = make_reader(prompts=AS_GIVEN)
    answer = await reader.generate(Prompt("Write a list of three fruits, one a line."), max_tokens=24)
    assert answer.text
    assert "\n" not in answer.text
    assert answer.completion_tokens == len(answer.tokens) + 1


async def test_characters_of_several_tokens(make_reader: MakeReader) -> None:
    """A character of several tokens arrives complete, and all of its tokens count."""
    reader = make_reader(prompts=AS_GIVEN)
    prompt = Prompt("Repeat exactly: 🎉🎉🎉")
    answer = await reader.generate(prompt, max_tokens=24)
    assert "🎉🎉🎉" in answer.text
    assert len(answer.tokens) > len(answer.text.split()) + 3
    _, streamed = await collect(reader, prompt)
    assert (streamed.text, len(streamed.tokens)) == (answer.text, len(answer.tokens))


@pytest.mark.parametrize("prompt", [FRANCE, INVENTED], ids=["closed-book", "open-book"])
async def test_streaming_changes_nothing(reader: OpenAIReader, prompt: Prompt) -> None:
    """A streamed answer has the same text, tokens, log-probabilities and usage as one that is not streamed."""
    whole = await reader.generate(prompt, max_tokens=24)
    pieces, streamed = await collect(reader, prompt)
    assert "".join(pieces) == streamed.text == whole.text
    assert len(pieces) > 1
    assert (streamed.prompt_tokens, streamed.completion_tokens) == (whole.prompt_tokens, whole.completion_tokens)
    assert streamed.passages_read == whole.passages_read
    assert len(streamed.tokens) == len(whole.tokens)
    for one, other in zip(streamed.tokens, whole.tokens, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-3)
        assert one.top == pytest.approx(other.top, abs=1e-3)


async def test_batching_does_not_change_answers(reader: OpenAIReader) -> None:
    """In a batch with others, a question keeps its tokens and, to a thousandth, its log-probabilities."""
    alone = await reader.generate(FRANCE, max_tokens=8)
    crowd = await asyncio.gather(*(reader.generate(prompt, max_tokens=8) for prompt in (FRANCE, INVENTED) * 4))
    for answer in crowd[::2]:
        assert answer.text == alone.text
        for one, other in zip(answer.tokens, alone.tokens, strict=True):
            assert one.logprob == pytest.approx(other.logprob, abs=1e-3)


async def test_endless_prompt_is_endless(make_reader: MakeReader) -> None:
    """The prompt of the next two tests really runs on: only the dropped connection stops it there."""
    answer = await make_reader(prompts=AS_GIVEN).generate(ENDLESS, max_tokens=100)
    assert len(answer.tokens) == 100


async def test_closing_the_stream_stops_the_generation(vllm: ChildServer, make_reader: MakeReader) -> None:
    """A client that closes the iterator stops vLLM there, far from its limit."""
    reader = make_reader(prompts=AS_GIVEN)
    before = await settled(vllm.url)
    async with aclosing(reader.stream(ENDLESS, max_tokens=1500)) as stream:
        count = 0
        async for _ in stream:
            count += 1
            if count == 5:
                break
    assert 5 <= await settled(vllm.url) - before < 80


async def test_cancelling_stops_the_generation(vllm: ChildServer, make_reader: MakeReader) -> None:
    """A cancelled call that has received nothing of its answer yet stops vLLM too."""
    reader = make_reader(prompts=AS_GIVEN)
    before = await settled(vllm.url)
    call = asyncio.create_task(reader.generate(ENDLESS, max_tokens=1500))
    await until(lambda: asyncio.to_thread(lambda: generated_tokens(vllm.url) >= before + 3), within_s=30)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert 3 <= await settled(vllm.url) - before < 80


async def test_identity(reader: OpenAIReader, make_reader: MakeReader) -> None:
    """The server reports enough to recognise what a calibrator was fitted on, and the same each time."""
    identity = await reader.identify()
    assert identity.reader == "smollm2"
    assert identity.chat_template != "unknown"
    assert identity == await make_reader().identify()
    await reader.ping()


async def test_unknown_model(make_reader: MakeReader) -> None:
    """The error names a model that vLLM does not serve; at the start it also lists the served ones."""
    reader = make_reader("made-up")
    with pytest.raises(ConfigurationError, match=r"'made-up', only: smollm2"):
        await reader.identify()
    with pytest.raises(UpstreamUnavailable, match="made-up"):
        await reader.generate(FRANCE, max_tokens=4)


async def test_template_arguments_are_accepted(make_reader: MakeReader) -> None:
    """A template argument can switch thinking off, even for a model without such a switch."""
    reader = make_reader(chat_template_kwargs={"enable_thinking": False})
    assert "Paris" in (await reader.generate(FRANCE, max_tokens=24)).text


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_worst_passages_are_dropped(vllm: ChildServer, reader: OpenAIReader, *, streamed: bool) -> None:
    """If the passages exceed the context, exactly the worst-ranked are left out of the prompt."""
    # Of different lengths, so the length of the prompt shows which of them are in it.
    passages = tuple(Passage(str(i), "", filler(700 - 10 * i)) for i in range(5))
    prompt = Prompt(FRANCE.question, passages)
    answer = (await collect(reader, prompt))[1] if streamed else await reader.generate(prompt, max_tokens=24)
    assert answer.passages_read == 2
    best = Prompt(FRANCE.question, passages[:2])
    assert answer.prompt_tokens == await asyncio.to_thread(prompt_tokens, vllm.url, best)


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_context_leaves_room_for_the_answer(vllm: ChildServer, reader: OpenAIReader, *, streamed: bool) -> None:
    """If a prompt leaves no room, vLLM silently shortens the answer: the reader drops a passage instead."""
    filling = "The weather was mild and the road was long. " * 300

    def filled(size: int) -> Prompt:
        return Prompt(
            FRANCE.question,
            (Passage("1", "France", "The capital of France is Paris."), Passage("2", "", filling[:size])),
        )

    # The longest prompt that vLLM accepts: room for a token or two of the requested 24.
    sizes = range(len(filling))
    too_long = await asyncio.to_thread(
        bisect.bisect_left, sizes, CONTEXT, key=lambda size: prompt_tokens(vllm.url, filled(size))
    )
    prompt = filled(too_long - 1)
    answer = (await collect(reader, prompt))[1] if streamed else await reader.generate(prompt, max_tokens=24)
    assert answer.passages_read == 1
    assert "Paris" in answer.text


def prompt_tokens(url: str, prompt: Prompt) -> int:
    """The length of a prompt according to vLLM."""
    content = prompts.DEFAULT.render(prompt.question, [(passage.title, passage.text) for passage in prompt.passages])
    body = {"model": "smollm2", "messages": [{"role": "user", "content": content}]}
    with client(url) as http:
        return int(http.post("/tokenize", json=body).json()["count"])


@pytest.mark.parametrize("tokens", [2100, 200_000], ids=["a-little", "absurdly"])
async def test_question_that_is_too_long(reader: OpenAIReader, tokens: int) -> None:
    """A question that exceeds the context by itself is the caller's error."""
    with pytest.raises(PromptTooLong):
        await reader.generate(Prompt(filler(tokens)), max_tokens=24)
    with pytest.raises(PromptTooLong):
        await collect(reader, Prompt(filler(tokens)))


async def test_control_tokens_are_read_as_text(reader: OpenAIReader) -> None:
    """VLLM's tokenizer says what is one: a common marker, and one that only this model knows."""
    for token in ("<|im_start|>", "<filename>"):
        said = await reader.generate(Prompt(f"What is {token}?"), max_tokens=1)
        apart = await reader.generate(Prompt(f"What is {token[0]} {token[1:]}?"), max_tokens=1)
        assert said.prompt_tokens == apart.prompt_tokens


def processes_under(leader: int) -> dict[str, int]:
    """The processes below the guard, oldest first: the server, and vLLM's engine below it."""
    (server,) = _children(leader)
    engines = [pid for pid in _children(server) if "Engine" in Path(f"/proc/{pid}/comm").read_text()]
    return {"server": server, "engine": engines[0]}


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def guard() -> int:
    """The guard of the server, the leader of its process group; its command includes the server's."""
    [leader] = [pid for pid in _children(os.getpid()) if b"child_guard.py" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return leader


async def answers(reader: OpenAIReader) -> bool:
    """Whether the server is ready."""
    try:
        await reader.ping()
    except UpstreamUnavailable:
        return False
    return True


@pytest.mark.parametrize("victim", ["server", "engine"])
async def test_killed_server_restarts(vllm: ChildServer, make_reader: MakeReader, victim: str) -> None:
    """Killed while answering, vLLM is reported as unavailable, and soon answers again at the same URL."""
    reader = make_reader(prompts=AS_GIVEN)
    url, leader = vllm.url, guard()
    stream = reader.stream(ENDLESS, max_tokens=1500)
    await anext(stream)
    await anext(stream)
    whole = asyncio.create_task(reader.generate(ENDLESS, max_tokens=1500))
    await asyncio.sleep(0.5)
    os.kill(processes_under(leader)[victim], signal.SIGKILL)
    with pytest.raises(UpstreamUnavailable):
        async for _ in stream:
            pass
    with pytest.raises(UpstreamUnavailable):
        await whole
    await until(lambda: not Path(f"/proc/{leader}").exists(), within_s=60)
    with pytest.raises(UpstreamUnavailable):
        await reader.ping()
    await until(lambda: answers(reader), within_s=600)
    assert vllm.url == url
    assert "Paris" in (await make_reader().generate(FRANCE, max_tokens=24)).text
