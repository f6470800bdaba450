"""The `openai` client against the gateway on a real socket."""

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionChunk, ChatCompletionMessageParam

from app.core.policy import Policy
from app.errors import UpstreamUnavailable
from tests.fakes.gateway import FakeGateway, fake_gateway
from tests.fakes.keys import make_key
from tests.waiting import until

from .served import served

ASKED = "What is the secret?"
SECRET = "It is the forty second word."
MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": ASKED}]
CONFIDENT, UNCERTAIN, HOPELESS = 0.9, 0.4, 0.1


@asynccontextmanager
async def opened(tmp_path: Path, **chosen: Any) -> AsyncIterator[tuple[FakeGateway, AsyncOpenAI]]:
    """A gateway on a socket, and a client without retries."""
    async with (
        fake_gateway(tmp_path, **({"artifact": {}} | chosen)) as gateway,
        served(gateway) as server,
        AsyncOpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="not needed", max_retries=0) as client,
    ):
        yield gateway, client


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[tuple[FakeGateway, AsyncOpenAI]]:
    """A gateway without keys, with a certified calibrator that matches."""
    async with opened(tmp_path) as both:
        yield both


async def streamed(client: AsyncOpenAI, **more: Any) -> list[ChatCompletionChunk]:
    """The chunks of one answer."""
    stream = await client.chat.completions.create(model="fetchwise", messages=MESSAGES, stream=True, **more)
    return [chunk async for chunk in stream]


async def test_a_whole_answer(running: tuple[FakeGateway, AsyncOpenAI]) -> None:
    """Content, usage, receipt, headers and request id."""
    gateway, client = running
    gateway.reader.says(ASKED, SECRET, sure=UNCERTAIN)
    raw = await client.chat.completions.with_raw_response.create(model="fetchwise", messages=MESSAGES)
    answer = raw.parse()
    assert answer.choices[0].message.content == SECRET
    assert answer.choices[0].message.refusal is None
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.model_extra is not None
    receipt = answer.model_extra["fetchwise"]
    assert (receipt["answer"], receipt["action"], receipt["k"]) == (SECRET, "k5", 5)
    assert answer.usage.prompt_tokens == sum(receipt["usage"][stage]["prompt_tokens"] for stage in ("probe", "read"))
    assert raw.headers["x-fetchwise-id"] == receipt["id"]
    assert raw.headers["x-fetchwise-action"] == "k5"
    assert raw.headers["x-fetchwise-reason"] == "uncertain"
    assert float(raw.headers["x-fetchwise-confidence"]) == pytest.approx(receipt["confidence"])
    assert answer._request_id == raw.headers["x-request-id"]


async def test_a_streamed_answer(running: tuple[FakeGateway, AsyncOpenAI]) -> None:
    """The pieces are the answer; the last content chunk has the receipt, then comes the usage."""
    gateway, client = running
    gateway.reader.says(ASKED, SECRET, sure=UNCERTAIN)
    more = {"stream_options": {"include_usage": True}, "extra_body": {"fetchwise": {"abstain": False}}}
    *spoken, ended, counted = await streamed(client, **more)
    assert spoken[0].choices[0].delta.role == "assistant"
    pieces = [chunk.choices[0].delta.content for chunk in spoken if chunk.choices[0].delta.content]
    assert len(pieces) == 6
    assert "".join(pieces) == SECRET
    assert ended.choices[0].finish_reason == "stop"
    assert ended.model_extra is not None
    assert ended.model_extra["fetchwise"]["answer"] == SECRET
    assert counted.usage is not None
    assert counted.usage.total_tokens == counted.usage.prompt_tokens + counted.usage.completion_tokens


async def test_the_clients_own_accumulation(running: tuple[FakeGateway, AsyncOpenAI]) -> None:
    """The stream helper of the client builds the same message as a completion."""
    gateway, client = running
    for sure in (CONFIDENT, HOPELESS):
        gateway.reader.says(ASKED, SECRET, sure=sure)
        whole = await client.chat.completions.create(model="fetchwise", messages=MESSAGES)
        async with client.chat.completions.stream(model="fetchwise", messages=MESSAGES) as stream:
            gathered = await stream.get_final_completion()
        assert gathered.choices[0].message.content == whole.choices[0].message.content
        assert gathered.choices[0].message.refusal == whole.choices[0].message.refusal
        assert gathered.choices[0].finish_reason == whole.choices[0].finish_reason


async def test_an_abstention_is_readable(running: tuple[FakeGateway, AsyncOpenAI]) -> None:
    """Its sentence is the content, without any withheld text; it can be sent back in a conversation."""
    gateway, client = running
    gateway.reader.says(ASKED, SECRET, sure=HOPELESS)
    answer = await client.chat.completions.create(model="fetchwise", messages=MESSAGES)
    message = answer.choices[0].message
    assert message.refusal is None
    assert message.content is not None
    assert message.content.startswith("I do not know")
    assert "forty" not in answer.model_dump_json()
    chunks = await streamed(client)
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == message.content
    again: Any = [*MESSAGES, message.model_dump(), {"role": "user", "content": "Why?"}]
    talked = await client.chat.completions.create(model="fetchwise", messages=again)
    assert talked.model_extra is not None
    assert talked.model_extra["fetchwise"]["mode"] == "chat"


async def test_models(running: tuple[FakeGateway, AsyncOpenAI]) -> None:
    """Models can be listed, retrieved and used."""
    _, client = running
    names = [model.id async for model in client.models.list()]
    assert names == ["fetchwise", *(f"fetchwise-{name}" for name in ("answer", "chat", *Policy))]
    for name in names:
        assert (await client.models.retrieve(name)).id == name
        assert (await client.chat.completions.create(model=name, messages=MESSAGES)).model == name


async def test_refusals_are_its_own_exceptions(tmp_path: Path) -> None:
    """Each error has its code and the invalid field."""
    path = tmp_path / "data" / "keys.json"
    _, slow = make_key(path, per_minute=1)
    _, judge = make_key(path, "judge", scopes=["feedback"])
    _, good = make_key(path, "good")
    async with opened(tmp_path, max_body_bytes=4096) as (_, nobody):
        client = nobody.with_options(api_key=good)
        with pytest.raises(openai.AuthenticationError) as denied:
            await nobody.chat.completions.create(model="fetchwise", messages=MESSAGES)
        assert denied.value.code == "invalid_api_key"
        with pytest.raises(openai.PermissionDeniedError):
            await nobody.with_options(api_key=judge).models.list()
        with pytest.raises(openai.NotFoundError) as unknown:
            await client.chat.completions.create(model="gpt-4", messages=MESSAGES)
        assert unknown.value.code == "model_not_found"
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("gpt-4")
        strict = {"fetchwise": {"strict": True}}
        with pytest.raises(openai.BadRequestError) as warm:
            await client.chat.completions.create(
                model="fetchwise", messages=MESSAGES, temperature=0.7, extra_body=strict
            )
        assert (warm.value.param, warm.value.type) == ("temperature", "invalid_request_error")
        assert "cannot be honoured" in warm.value.message
        with pytest.raises(openai.APIStatusError) as large:
            await client.chat.completions.create(model="fetchwise", messages=MESSAGES, user="x" * 5000)
        assert (large.value.status_code, large.value.code) == (413, "body_too_large")
        impatient = nobody.with_options(api_key=slow)
        await impatient.models.list()
        with pytest.raises(openai.RateLimitError) as often:
            await impatient.models.list()
        assert often.value.code == "rate_limit_exceeded"
        assert int(often.value.response.headers["retry-after"]) >= 1


async def test_too_many_at_once(tmp_path: Path) -> None:
    """It gets a Retry-After, and retries by itself if allowed."""
    async with opened(tmp_path, max_in_flight=1, queue=0) as (gateway, client):
        begun = asyncio.Event()
        gateway.reader.hang, gateway.reader.before = True, lambda _: begun.set()
        first = asyncio.create_task(client.chat.completions.create(model="fetchwise", messages=MESSAGES))
        await begun.wait()
        with pytest.raises(openai.RateLimitError) as shed:
            await client.chat.completions.create(model="fetchwise", messages=MESSAGES)
        assert shed.value.code == "overloaded"
        gateway.reader.hang = False
        patient = asyncio.create_task(
            client.with_options(max_retries=9).chat.completions.create(model="fetchwise", messages=MESSAGES)
        )
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert (await patient).choices[0].message.content


async def test_what_fails_behind(running: tuple[FakeGateway, AsyncOpenAI]) -> None:
    """Before the first chunk an error is a status, later an error in the stream; the client raises both."""
    gateway, client = running
    gateway.reader.says(ASKED, SECRET, k=0, sure=UNCERTAIN)
    gateway.reader.fail_with = UpstreamUnavailable("reader", "the reader is gone")
    for stream in (True, False):
        with pytest.raises(openai.InternalServerError) as down:
            await client.chat.completions.create(model="fetchwise", messages=MESSAGES, stream=stream)
        assert (down.value.status_code, down.value.code) == (503, "upstream_unavailable")
    gateway.reader.fail_on_k = 5
    begun = await client.chat.completions.create(model="fetchwise-always", messages=MESSAGES, stream=True)
    with pytest.raises(openai.APIError) as broken:
        async for _ in begun:
            pass
    assert not isinstance(broken.value, openai.APIStatusError)
    assert (broken.value.message, broken.value.code) == ("the reader is gone", "upstream_unavailable")


async def test_leaving_a_stream_stops_the_work(running: tuple[FakeGateway, AsyncOpenAI]) -> None:
    """Closing the stream cancels the generation."""
    gateway, client = running
    gateway.reader.hang = True
    more: Any = {"extra_body": {"fetchwise": {"policy": "always", "abstain": False}}}
    stream = await client.chat.completions.create(model="fetchwise", messages=MESSAGES, stream=True, **more)
    assert (await anext(aiter(stream))).choices[0].delta.role == "assistant"
    await stream.close()
    await until(lambda: gateway.reader.cancelled)


async def test_the_client_that_blocks(running: tuple[FakeGateway, AsyncOpenAI]) -> None:
    """The synchronous client gets the same reply."""
    gateway, client = running
    gateway.reader.says(ASKED, SECRET, sure=CONFIDENT)

    def asked() -> tuple[str | None, str]:
        with OpenAI(base_url=str(client.base_url), api_key="not needed") as blocking:
            whole = blocking.chat.completions.create(model="fetchwise", messages=MESSAGES)
            stream = blocking.chat.completions.create(model="fetchwise", messages=MESSAGES, stream=True)
            return whole.choices[0].message.content, "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    assert await asyncio.to_thread(asked) == (SECRET, SECRET)


async def test_the_example_of_the_documentation(running: tuple[FakeGateway, AsyncOpenAI]) -> None:
    """The example of the documentation runs, with another address."""
    gateway, client = running
    gateway.reader.says("What is the capital of Jamaica?", "Kingston.", sure=CONFIDENT)
    (example,) = re.findall(r"```python\n(.*?)```", (Path(__file__).parents[2] / "docs/ask.md").read_text(), re.DOTALL)
    address = "http://127.0.0.1:8080/v1"
    assert address in example
    program = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        example.replace(address, str(client.base_url).rstrip("/")),
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await program.communicate()
    assert said.decode().splitlines() == ["Kingston.", f"k0 {CONFIDENT}"]
    assert program.returncode == 0
