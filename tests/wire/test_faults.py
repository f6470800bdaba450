"""Every fault of every upstream: the reply comes in bounded time, and is an error or reports its fallback."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.fakes.gateway import events_of
from tests.waiting import until
from tests.wire import fault_proxy as faults
from tests.wire.fault_proxy import Fault, FaultProxy
from tests.wire.proxied_gateway import ProxiedGateway, proxied_gateway


async def refused(_: faults.Exchange) -> None:
    """A server that is down: the proxy does not listen."""


# The error that each fault causes, by the word in the error's type.
TIMEOUT, UNAVAILABLE, BAD_REPLY = "upstream_timeout", "upstream_unavailable", "upstream_bad_reply"
FAULTS: dict[str, tuple[Fault, str]] = {
    "late": (faults.late, TIMEOUT),
    "dripping": (faults.dripping, TIMEOUT),
    "gateway timeout": (faults.status(504), TIMEOUT),
    "refused": (refused, UNAVAILABLE),
    "reset before the head": (faults.reset_before_the_head, UNAVAILABLE),
    "reset after the head": (faults.reset_after_the_head, UNAVAILABLE),
    "closed without a word": (faults.closed_without_reply, UNAVAILABLE),
    "half-closed": (faults.half_closed, UNAVAILABLE),
    "half-closed in the body": (faults.half_closed_in_the_body, UNAVAILABLE),
    "cut in the body": (faults.cut_in_the_body, UNAVAILABLE),
    "500": (faults.status(500), UNAVAILABLE),
    "502": (faults.status(502), UNAVAILABLE),
    "503": (faults.status(503), UNAVAILABLE),
    "429": (faults.status(429), UNAVAILABLE),
    "key refused": (faults.status(401), UNAVAILABLE),
    "redirect": (faults.status(307), BAD_REPLY),
    "truncated JSON": (faults.truncated_json, BAD_REPLY),
    "HTML": (faults.html, BAD_REPLY),
    "not HTTP": (faults.not_http, BAD_REPLY),
    "empty": (faults.empty, BAD_REPLY),
    "a list": (faults.shaped([1, 2]), BAD_REPLY),
    "an empty object": (faults.shaped({}), BAD_REPLY),
    "null": (faults.shaped(None), BAD_REPLY),
    "other types": (faults.shaped({"choices": 7, "data": 7, "result": 7}), BAD_REPLY),
    "nothing inside": (faults.shaped({"choices": [{}], "data": [{}], "result": {"points": [{}]}}), BAD_REPLY),
    "NaN": (faults.numbers_as(b"NaN", b"logprob", b"embedding", b"score"), BAD_REPLY),
}
ENDS_IN_TIMEOUT = {"late", "dripping"}
UPSTREAMS = ("reader", "embedder", "vectors")


def short_timeouts(upstream: str) -> dict[str, float]:
    """Settings that give an upstream only a short time to reply."""
    return {f"{upstream}_timeout_s": 0.25}


@pytest.fixture
def nothing_unexpected(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No error and no traceback in the log, from any logger."""
    caplog.set_level(logging.INFO)
    yield
    for record in caplog.get_records("call"):
        assert record.levelno < logging.ERROR, record.getMessage()
        assert record.exc_info is None, record.getMessage()


# One event loop for all tests: most of them share a gateway.
pytestmark = [pytest.mark.usefixtures("nothing_unexpected"), pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def patient(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ProxiedGateway]:
    """A gateway whose breakers never open, so every fault reaches the adapter."""
    async with proxied_gateway(tmp_path_factory.mktemp("gateway"), breaker_failures=1000) as gateway:
        yield gateway


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def impatient(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[dict[str, ProxiedGateway]]:
    """For each upstream, a gateway whose breakers never open and that gives that upstream only a short time."""
    async with AsyncExitStack() as stack:
        yield {
            upstream: await stack.enter_async_context(
                proxied_gateway(tmp_path_factory.mktemp("impatient"), breaker_failures=1000, **short_timeouts(upstream))
            )
            for upstream in UPSTREAMS
        }


@pytest_asyncio.fixture(loop_scope="module")
async def gateway(
    request: pytest.FixtureRequest, patient: ProxiedGateway, impatient: dict[str, ProxiedGateway]
) -> ProxiedGateway:
    """The impatient gateway for faults that end in a timeout; the patient one for all others."""
    chosen = request.node.callspec.params
    return impatient[chosen.get("upstream", "reader")] if chosen["name"] in ENDS_IN_TIMEOUT else patient


@asynccontextmanager
async def broken(proxy: FaultProxy, fault: Fault) -> AsyncIterator[None]:
    """Corrupt what passes through a proxy inside this context."""
    proxy.fault = fault
    if fault is refused:
        await proxy.refuse()
    yield
    if fault is refused:
        await proxy.listen()
    proxy.fault = faults.healthy


def error_of(problem: dict[str, Any]) -> str:
    """The type of an error of the standard shape that has a cause."""
    assert problem.keys() == {"error"}
    assert problem["error"].keys() == {"type", "message", "fields"}
    assert problem["error"]["message"]
    return str(problem["error"]["type"])


def refusal(reply: httpx.Response) -> str:
    """The error type of a 503 with `Retry-After`."""
    assert reply.status_code == 503, reply.text
    assert int(reply.headers["retry-after"]) >= 1
    return error_of(reply.json())


def last_event(reply: httpx.Response) -> tuple[str, dict[str, Any]]:
    """The outcome of a stream; an error before the first event shows in the status."""
    if reply.status_code == 503:
        return "error", reply.json()
    assert reply.status_code == 200, reply.text
    return events_of(reply)[-1]


@pytest.mark.parametrize("name", FAULTS)
async def test_reader_failure_is_a_503_that_names_the_failure(gateway: ProxiedGateway, name: str) -> None:
    """Without a reader there is no answer: the probe fails, and so does a streamed read."""
    fault, kind = FAULTS[name]
    async with broken(gateway.readers[0], fault):
        assert refusal(await gateway.ask()) == kind
        event, problem = last_event(await gateway.ask(policy="always", abstain=False, stream=True))
        assert event == "error"
        # An event stream ends with its connection, so a cut stream and a malformed one look the same.
        assert error_of(problem) in {kind, UNAVAILABLE, BAD_REPLY}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("upstream", ["embedder", "vectors"])
async def test_failed_retrieval_falls_back_and_the_receipt_reports_it(
    gateway: ProxiedGateway, upstream: str, name: str
) -> None:
    """The closed-book answer is given if its probability allows it; a caller that requires passages gets a 503."""
    fault, kind = FAULTS[name]
    counted = {"upstream": upstream, "kind": kind.removeprefix("upstream_")}
    before = await gateway.metric("upstream_errors_total", **counted)
    async with broken(gateway.proxy(upstream), fault):
        whole = await gateway.receipt(policy="always")
        assert (whole["decision"]["reason"], whole["action"], whole["k"]) == ("retrieval_failed", "k0", 0)
        assert not whole["decision"]["calibrator"]["certified"]
        event, streamed = last_event(await gateway.ask(policy="always", stream=True))
        assert (event, streamed["decision"]["reason"]) == ("final", "retrieval_failed")
        assert refusal(await gateway.ask(retrieval="required")) == kind
    assert await gateway.metric("upstream_errors_total", **counted) == before + 3


@pytest.mark.parametrize(
    "fault",
    [
        faults.without_logprobs,
        faults.numbers_as(b"null", b"logprob"),
        faults.numbers_as(b"5", b"logprob"),
        faults.numbers_as(b"true", b"logprob"),
    ],
    ids=["missing", "null", "positive", "true"],
)
async def test_reader_without_log_probs_reads_five_passages_and_reports_no_confidence(
    patient: ProxiedGateway, fault: Fault
) -> None:
    """Without a signal, the gateway reads the most passages and invents no probability."""
    async with broken(patient.readers[0], fault):
        whole = await patient.receipt()
        event, streamed = last_event(await patient.ask(stream=True))
        assert event == "final"
        for receipt in (whole, streamed):
            assert (receipt["decision"]["reason"], receipt["k"], receipt["confidence"]) == ("no_signal", 5, None)
            assert len(receipt["citations"]) == 5
            assert not receipt["decision"]["calibrator"]["certified"]


@pytest.mark.parametrize("count", [b"-5", b"9223372036854775808", b"1e300", b"true", b'"many"'])
async def test_impossible_counts_do_not_spoil_an_answer(patient: ProxiedGateway, count: bytes) -> None:
    """The answer, its receipt and the metrics are as without them; no observer fails."""
    async with broken(patient.readers[0], faults.numbers_as(count, b"prompt_tokens", b"completion_tokens")):
        whole = await patient.receipt(policy="always")
        event, streamed = last_event(await patient.ask(policy="always", stream=True))
        assert event == "final"
        for receipt in (whole, streamed):
            assert receipt["usage"]["read"]["prompt_tokens"] == 0
            assert 0 < receipt["usage"]["read"]["completion_tokens"] < 100
    assert await patient.metric("background_failures_total", task="observers") == 0


@pytest.mark.parametrize("upstream", UPSTREAMS)
async def test_occasional_failures_are_retried(tmp_path: Path, upstream: str) -> None:
    """If every fourth call fails, callers do not notice, but the retries are counted."""
    async with proxied_gateway(tmp_path) as gateway:
        proxy = gateway.proxy(upstream)
        proxy.fault, proxy.every = FAULTS["503"][0], 4
        proxy.spoils = lambda path: not path.endswith(("/models", "/tokenize"))
        for _ in range(12):
            receipt = await gateway.receipt(policy="always")
            assert (receipt["k"], receipt["action"]) == (5, "k5"), receipt
        assert await gateway.metric("retries_total", upstream=upstream) >= 2


@pytest.mark.parametrize("name", ["refused", "503", "truncated JSON", "late"])
@pytest.mark.parametrize("upstream", UPSTREAMS)
async def test_open_breaker_refuses_calls_until_the_upstream_answers_again(
    tmp_path: Path, upstream: str, name: str
) -> None:
    """While the breaker is open, no call waits for the upstream; once it answers again, the gateway uses it again."""
    timeouts = short_timeouts(upstream) if name in ENDS_IN_TIMEOUT else {}
    async with proxied_gateway(tmp_path, breaker_failures=2, breaker_retry_s=0.3, retries=0, **timeouts) as gateway:

        async def is_open() -> bool:
            await gateway.ask(policy="always")
            return await gateway.metric("breaker_open", upstream=upstream) == 1

        async def answers_again() -> bool:
            reply = await gateway.ask(policy="always")
            return reply.status_code == 200 and reply.json()["decision"]["reason"] != "retrieval_failed"

        async with broken(gateway.proxy(upstream), FAULTS[name][0]):
            await until(is_open)
            replies = await asyncio.gather(*(gateway.ask(retrieval="required") for _ in range(8)))
            assert any("is open: " in reply.text for reply in replies)
            assert all(refusal(reply) for reply in replies)
        await until(answers_again)
        assert await gateway.metric("breaker_open", upstream=upstream) == 0


async def test_no_question_fails_when_one_of_two_readers_fails(tmp_path: Path) -> None:
    """Its questions go to the other reader, readiness reports the failure, and the reader is used again later."""
    async with proxied_gateway(tmp_path, replicas=2, breaker_failures=2, breaker_retry_s=0.3) as gateway:
        questions = [f"What is the capital of country {number}?" for number in range(30)]

        async def all_ready() -> bool:
            await gateway.refresh()
            ready = (await gateway.client.get("/readyz")).json()
            return ready["upstreams"]["reader"] == "ok" and await gateway.metric("breaker_open", upstream="reader") == 0

        for fault in (faults.reset_before_the_head, FAULTS["503"][0], refused):
            async with broken(gateway.readers[0], fault):
                for reply in await asyncio.gather(*(gateway.ask(question) for question in questions)):
                    assert reply.status_code == 200, reply.text
                assert await gateway.metric("breaker_open", upstream="reader") == 0.5
                await gateway.refresh()
                ready = await gateway.client.get("/readyz")
                assert ready.status_code == 200
                assert ready.json()["upstreams"]["reader"].startswith("ok, but 1 of 2 readers answer; reader 1: ")
            await until(all_ready)
        for server in gateway.servers:
            server.requests.clear()
        for question in questions:
            await gateway.ask(question)
        assert all(server.chats for server in gateway.servers)


async def test_retry_after_is_the_rest_of_the_breakers_pause(tmp_path: Path) -> None:
    """A 503 from an open breaker says when the next trial call is due."""
    async with proxied_gateway(tmp_path, breaker_failures=1, breaker_retry_s=100.0) as gateway:
        async with broken(gateway.readers[0], refused):
            refusal(await gateway.ask())
        reply = await gateway.ask()
        assert refusal(reply) == UNAVAILABLE
        assert 50 < int(reply.headers["retry-after"]) <= 150


@pytest.mark.parametrize("name", ["refused", "truncated JSON", "late"])
@pytest.mark.parametrize("upstream", UPSTREAMS)
async def test_readiness_names_the_failing_upstream(gateway: ProxiedGateway, upstream: str, name: str) -> None:
    """`/readyz` answers in time and describes the failure."""
    async with broken(gateway.proxy(upstream), FAULTS[name][0]):
        await gateway.refresh()
        ready = await gateway.client.get("/readyz")
    assert ready.status_code == (503 if upstream == "reader" else 200)
    assert ready.json()["state"] == ("down" if upstream == "reader" else "degraded")
    assert upstream in {part for part, state in ready.json()["upstreams"].items() if state != "ok"}
