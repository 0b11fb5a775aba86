"""The collector that spans are sent to. Importing this module imports OpenTelemetry."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from rollserve_server import __version__
from rollserve_server.tracing.span import Span, clock_offset, since_1970

__all__ = ["Collector"]

_CLOSE_SECONDS = 3.0
"""How long the last spans may take to be sent."""

_PROPAGATOR = TraceContextTextMapPropagator()
_KEYS = frozenset(_PROPAGATOR.fields)
"""Keys of W3C's Trace Context."""


class Collector:
    """Sends ended spans to a collector, from a thread of its own. Spans beyond a queue are dropped."""

    def __init__(self, endpoint: str, ratio: float) -> None:
        """Prepare to send spans.

        Args:
            endpoint: URL of the collector.
            ratio: share of the traces begun here that are recorded.
        """
        # Variables of OpenTelemetry may say more, such as OTEL_RESOURCE_ATTRIBUTES.
        resource = Resource({"service.name": "rollserve-server", "service.version": __version__})
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(ratio)),
            resource=resource.merge(OTELResourceDetector().detect()),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint)))
        self._tracer = self._provider.get_tracer("rollserve_server", __version__)

    def begin(self, name: str, began: float, metadata: Iterable[tuple[str, str | bytes]]) -> Span | None:
        """Begin the span of an RPC, which continues the trace in the metadata; None if it is not recorded."""
        context = _PROPAGATOR.extract({key: str(value) for key, value in metadata if key in _KEYS})
        offset = clock_offset()
        span = self._tracer.start_span(name, context, SpanKind.SERVER, start_time=since_1970(began, offset))
        return Span(self._tracer, span, offset) if span.is_recording() else None

    def close(self) -> None:
        """Send what is left, for at most 3 s."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)  # it may take half a minute
        closing.start()
        closing.join(_CLOSE_SECONDS)
