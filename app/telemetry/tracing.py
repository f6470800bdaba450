"""Traces by OpenTelemetry: a span for each question with one for each of its stages, sent over OTLP.

OpenTelemetry's SDK reads its own variables, such as OTEL_EXPORTER_OTLP_ENDPOINT. FastAPI makes the server span, with a
caller's `traceparent` as its parent. Upstream calls carry the `traceparent` of their stage.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from app.core.record import DecisionRecord
from app.correlation import RequestContext, outgoing
from app.errors import ConfigurationError

try:
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
    from opentelemetry.trace import SpanKind, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise ConfigurationError("FETCHWISE_TRACES=otlp needs OpenTelemetry: pip install 'fetchwise[otel]'") from error

logger = logging.getLogger(__name__)

# How long the last spans may take to be sent; the SDK waits up to 30 s for a collector that does not answer.
_STOP_S = 5.0


class _Exporter(OTLPSpanExporter):
    """Counts the spans that the collector did not accept: the SDK drops them."""

    def __init__(self, on_dropped: Callable[[int], None]) -> None:
        super().__init__()
        self._on_dropped = on_dropped
        self._failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send the spans."""
        result = super().export(spans)
        failing = result is not SpanExportResult.SUCCESS
        if failing:
            self._on_dropped(len(spans))
        if failing and not self._failing:
            logger.warning("traces are lost: the collector does not take them")
        self._failing = failing
        return result


class Tracing:
    """Makes spans of stages, and adds finished decisions to them. Nothing is sent before it is entered."""

    def __init__(self, version: str) -> None:
        own = Resource.create({"service.name": "fetchwise", "service.version": version})
        # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES override these.
        self.provider = TracerProvider(resource=own.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
        self._tracer = self.provider.get_tracer("fetchwise", version)
        self._propagator = TraceContextTextMapPropagator()
        # Called with the number of spans that the collector did not accept; set it before entering.
        self.on_dropped: Callable[[int], None] = lambda _count: None

    async def __aenter__(self) -> None:
        """Start sending spans, in a thread of the SDK."""
        self.provider.add_span_processor(BatchSpanProcessor(_Exporter(self.on_dropped)))

    async def __aexit__(self, *_: object) -> None:
        """Send what is left, and stop."""
        # A thread that the end of the process does not wait for.
        stopping = threading.Thread(target=self.provider.shutdown, name="stop tracing", daemon=True)
        stopping.start()
        await asyncio.to_thread(stopping.join, _STOP_S)

    def began(self, note: RequestContext) -> None:
        """Link the log lines and the trace of a request by their ids."""
        span = trace.get_current_span()
        if (context := span.get_span_context()).is_valid:
            note.trace_id = trace.format_trace_id(context.trace_id)
            span.set_attribute("fetchwise.request_id", note.request_id)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """A span around one stage; its upstream calls carry its `traceparent`."""
        # Without the exception: its text may quote a server, and so the question.
        with self._tracer.start_as_current_span(
            name, kind=SpanKind.CLIENT, record_exception=False, set_status_on_exception=False
        ) as span:
            headers: dict[str, str] = {}
            self._propagator.inject(headers)
            token = outgoing.set(headers)
            try:
                yield
            except asyncio.CancelledError:
                # The client closed the connection.
                span.set_attribute("fetchwise.cancelled", True)  # noqa: FBT003 - the SDK's signature
                raise
            except BaseException as error:
                span.set_attribute("error.type", str(getattr(error, "kind", type(error).__name__)))
                span.set_status(StatusCode.ERROR)
                raise
            finally:
                outgoing.reset(token)

    def observe(self, record: DecisionRecord) -> None:
        """Add the decision to the question's span; never the question or the answer."""
        span = trace.get_current_span()
        if not span.is_recording():
            return
        decided = record.outline()
        span.set_attributes({f"fetchwise.{name}": value for name, value in decided.items() if value is not None})
