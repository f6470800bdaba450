"""Traces as a collector receives them over OTLP: one tree per question under the caller's span; nothing when off."""

import importlib
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics

from app.core.prompts import DEFAULT
from app.errors import ConfigurationError, UpstreamTimeout
from app.ports import Prompt
from app.telemetry.tracing import Tracing
from app.upstream.embedders.openai import OpenAIEmbedder
from app.upstream.readers.openai import OpenAIReader
from tests.fakes.gateway import fake_gateway
from tests.wire.embedding_server import embedding_server
from tests.wire.fault_proxy import answer
from tests.wire.reader_server import MODEL, Dialect, reader_server
from tests.wire.servers import Server, direct, serving

ASKED = "What is the capital of Zubrovia?"
TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
FROM_CALLER = {"traceparent": f"00-{TRACE}-{CALLER}-01", "x-request-id": "r1"}


@pytest.fixture
async def collector(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    """A collector, configured by OpenTelemetry's own variable."""
    async with serving(answer(200, b"", "application/x-protobuf")) as server:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.url)
        yield server


def received(collector: Server) -> dict[str, Span]:
    """Every span that the collector received, by name."""
    spans = {}
    for request in collector.requests:
        assert (request.method, request.path) == ("POST", "/v1/traces")
        for resource in ExportTraceServiceRequest.FromString(request.body).resource_spans:
            for scope in resource.scope_spans:
                spans.update({span.name: span for span in scope.spans})
    return spans


def attributes(span: Span) -> dict[str, Any]:
    """The attributes of a span as plain values."""
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}


async def test_question_is_one_tree(collector: Server, tmp_path: Path) -> None:
    """The caller's span is the parent of the question's, which is the parent of every stage and shows the decision."""
    async with fake_gateway(tmp_path, artifact={}, traces="otlp") as gateway:
        gateway.reader.says(ASKED, "Zubrville", k=0, sure=0.375)
        receipt = (await gateway.client.post("/answer", json={"question": ASKED}, headers=FROM_CALLER)).json()
        assert receipt["k"] == 5
    spans = received(collector)
    question = spans.pop("POST /answer")
    assert set(spans) == {"probe", "embed", "search", "read"}
    assert (question.trace_id.hex(), question.parent_span_id.hex()) == (TRACE, CALLER)
    assert question.kind == Span.SPAN_KIND_SERVER
    said = attributes(question)
    assert said["http.response.status_code"] == 200
    assert said["fetchwise.request_id"] == "r1"
    assert said["fetchwise.decision_id"] == receipt["id"]
    assert (said["fetchwise.action"], said["fetchwise.k"], said["fetchwise.reason"]) == ("k5", 5, "uncertain")
    assert said["fetchwise.p_closed_book"] == receipt["decision"]["p_closed_book"]
    ends = question.start_time_unix_nano
    for name in ("probe", "embed", "search", "read"):
        stage = spans[name]
        assert (stage.trace_id, stage.parent_span_id) == (question.trace_id, question.span_id)
        assert ends <= stage.start_time_unix_nano <= stage.end_time_unix_nano
        ends = stage.end_time_unix_nano
    assert ends <= question.end_time_unix_nano


async def test_durations_link_to_their_trace(collector: Server, tmp_path: Path) -> None:
    """A scrape in the OpenMetrics format has the trace of a question as the exemplar of its bucket."""
    async with fake_gateway(tmp_path, artifact={}, traces="otlp") as gateway:
        await gateway.client.post("/answer", json={"question": ASKED}, headers=FROM_CALLER)
        scrape = await gateway.client.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    (counted,) = (
        family for family in openmetrics(scrape.text) if family.name == "fetchwise_http_request_duration_seconds"
    )
    linked = [sample.exemplar.labels for sample in counted.samples if sample.exemplar]
    assert linked == [{"trace_id": TRACE}]


async def test_spans_that_the_collector_refuses_are_counted(collector: Server) -> None:
    """An operator sees that traces are incomplete."""
    collector.reply = answer(400, b"", "application/x-protobuf")
    dropped: list[int] = []
    tracing = Tracing("1")
    tracing.on_dropped = dropped.append
    async with tracing:
        with tracing.stage("probe"):
            pass
    assert dropped == [1]


async def test_spans_contain_no_text(collector: Server, tmp_path: Path) -> None:
    """No question or answer reaches the collector, even if the message of a failed stage quotes it."""
    async with fake_gateway(tmp_path, artifact={}, traces="otlp") as gateway:
        await gateway.client.post("/answer", json={"question": ASKED})
        gateway.reader.fail_with = UpstreamTimeout("reader", f"no answer to {ASKED}")
        assert (await gateway.client.post("/answer", json={"question": ASKED})).status_code == 503
    sent = b"".join(request.body for request in collector.requests)
    assert b"probe" in sent
    for text in (b"Zubrovia", b"Zubrville"):
        assert text not in sent


async def test_failed_stage_is_marked(collector: Server, tmp_path: Path) -> None:
    """The failed stage and its question are marked with the kind of failure."""
    async with fake_gateway(tmp_path, artifact={}, traces="otlp") as gateway:
        gateway.reader.fail_with = UpstreamTimeout("reader", "slow")
        assert (await gateway.client.post("/answer", json={"question": ASKED})).status_code == 503
    spans = received(collector)
    assert spans["probe"].status.code == spans["POST /answer"].status.code == Status.STATUS_CODE_ERROR
    assert attributes(spans["probe"])["error.type"] == "timeout"
    assert attributes(spans["POST /answer"])["http.response.status_code"] == 503


async def test_probes_and_scrapes_are_not_traced(collector: Server, tmp_path: Path) -> None:
    """Requests of probes and scrapers make no spans."""
    async with fake_gateway(tmp_path, traces="otlp") as gateway:
        for path in ("/healthz", "/readyz", "/metrics"):
            await gateway.client.get(path)
    assert received(collector) == {}


async def test_nothing_is_sent_when_off(collector: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When traces are off, OpenTelemetry's own variables change nothing."""
    monkeypatch.setenv("FASTAPI_OTEL_AUTO_CONFIGURE", "true")
    async with fake_gateway(tmp_path, artifact={}) as gateway:
        assert (await gateway.client.post("/answer", json={"question": ASKED}, headers=FROM_CALLER)).status_code == 200
    assert collector.requests == []


def test_nothing_is_imported_when_off() -> None:
    """A gateway without traces does not load the packages for them."""
    program = """
import sys
from app.wiring.gateway import create_app
from app.settings import Settings
create_app(Settings.of())
assert not [name for name in sys.modules if name.startswith(("opentelemetry.sdk", "opentelemetry.exporter"))]
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_start_without_the_packages_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what to install."""
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    monkeypatch.delitem(sys.modules, "app.telemetry.tracing")
    with pytest.raises(ConfigurationError, match=r"fetchwise\[otel\]"):
        importlib.import_module("app.telemetry.tracing")


async def test_service_name_can_be_set(collector: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is `fetchwise` unless OpenTelemetry's own variable is set."""
    assert Tracing("1").provider.resource.attributes["service.name"] == "fetchwise"
    monkeypatch.setenv("OTEL_SERVICE_NAME", "gateway-eu")
    assert Tracing("1").provider.resource.attributes["service.name"] == "gateway-eu"


async def test_upstream_calls_carry_the_span_of_their_stage(collector: Server) -> None:
    """Calls to the reader and the embedder carry the span of their stage; calls outside a stage carry none."""
    tracing = Tracing("1")
    async with tracing, reader_server(Dialect.VLLM) as reading, embedding_server() as embedding:
        reader = OpenAIReader(reading.url, MODEL, prompts=DEFAULT)
        embedder = OpenAIEmbedder(embedding.url, "any", link=direct("embedder"))
        with tracing.stage("probe"):
            await reader.generate(Prompt(ASKED), max_tokens=8)
        with tracing.stage("embed"):
            await embedder.embed_query(ASKED)
        with tracing.stage("read"):
            streamed = [item async for item in reader.stream(Prompt(ASKED), max_tokens=8)]
        assert streamed
        chats = [asked for asked in reading.requests if asked.path == "/v1/chat/completions"]
        sent = [chats[0].headers, embedding.headers[0], chats[1].headers]
        await reader.generate(Prompt(ASKED), max_tokens=8)
        assert "traceparent" not in reading.requests[-1].headers
        await reader.close()
        await embedder.close()
    spans = received(collector)
    for name, headers in zip(("probe", "embed", "read"), sent, strict=True):
        span = spans[name]
        assert headers["traceparent"].startswith(f"00-{span.trace_id.hex()}-{span.span_id.hex()}-")


async def test_collector_that_does_not_answer_delays_the_end_a_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK would wait for half a minute."""
    done = threading.Event()
    tracing = Tracing("1")
    monkeypatch.setattr("app.telemetry.tracing._STOP_S", 0.1)
    monkeypatch.setattr(tracing.provider, "shutdown", lambda: done.wait(60))
    began = time.monotonic()
    async with tracing:
        pass
    assert time.monotonic() - began < 30
    done.set()
