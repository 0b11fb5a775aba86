"""Spans, and the collector that they are sent to. Importing this module imports OpenTelemetry, in 0.25 s."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Self

from opentelemetry.context import attach
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from rollserve_server import __version__
from rollserve_server.errors import DomainError

if TYPE_CHECKING:
    from opentelemetry import trace

__all__ = ["CLOSE_SECONDS", "Span", "SpanCollector", "resource"]

CLOSE_SECONDS = 3.0
"""How long what is left may take to be sent at the end."""
_PROPAGATOR = TraceContextTextMapPropagator()
_KEYS = frozenset(_PROPAGATOR.fields)
"""Keys of W3C's Trace Context."""


class Span:
    """A named part of a trace. As a context manager, it ends with the block, failed if the block raises an error.

    Times are of `time.monotonic`; None stands for now.
    """

    def __init__(self, tracer: trace.Tracer, span: trace.Span, offset: int) -> None:
        """Wrap a span that has begun; `offset` is the `_clock_offset` of the whole trace."""
        self._tracer = tracer
        self._span = span
        self._offset = offset

    def child(self, name: str, began: float | None = None) -> Span:
        """Begin a span within this one."""
        context, began = set_span_in_context(self._span), time.monotonic() if began is None else began
        span = self._tracer.start_span(name, context, start_time=_since_1970(began, self._offset))
        return Span(self._tracer, span, self._offset)

    def set(self, attributes: Mapping[str, str | int | float]) -> None:
        """Add attributes. Names without a dot get the prefix `rollserve.`."""
        named = {name if "." in name else f"rollserve.{name}": value for name, value in attributes.items()}
        self._span.set_attributes(named)

    def fail(self, error: Exception | str) -> None:
        """Mark the span as failed, with an error's reason. The log has the error's text."""
        if isinstance(error, Exception):
            error = error.reason if isinstance(error, DomainError) else type(error).__name__
        self._span.set_status(Status(StatusCode.ERROR, error))
        self._span.set_attribute("error.type", error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):
            self.fail(error)
        self.end()

    def end(self, at: float | None = None) -> None:
        """End the span."""
        self._span.end(_since_1970(time.monotonic() if at is None else at, self._offset))


class SpanCollector:
    """Sends ended spans to a collector, from a thread of its own. Spans beyond a queue are dropped."""

    def __init__(self, endpoint: str, ratio: float) -> None:
        """Prepare to send spans.

        Args:
            endpoint: URL of the collector.
            ratio: share of the traces begun here that are recorded.
        """
        sampler = ParentBased(TraceIdRatioBased(ratio))
        self._provider = TracerProvider(sampler=sampler, resource=resource(), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint)))
        self._tracer = self._provider.get_tracer("rollserve_server", __version__)

    def begin(self, name: str, began: float, metadata: Iterable[tuple[str, str | bytes]]) -> Span | None:
        """Begin the span of an RPC, which continues the trace in the metadata; None if it is not recorded."""
        context = _PROPAGATOR.extract({key: str(value) for key, value in metadata if key in _KEYS})
        offset = _clock_offset()
        span = self._tracer.start_span(name, context, SpanKind.SERVER, start_time=_since_1970(began, offset))
        attach(set_span_in_context(span))  # of the RPC's task: its log events are part of the trace
        return Span(self._tracer, span, offset) if span.is_recording() else None

    def close(self) -> None:
        """Send what is left, for at most 3 s."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)  # it may take half a minute
        closing.start()
        closing.join(CLOSE_SECONDS)


def resource() -> Resource:
    """Return what sends spans, log events and metrics: the server, and what variables of OpenTelemetry say of it."""
    server = Resource({"service.name": "rollserve-server", "service.version": __version__})
    return server.merge(OTELResourceDetector().detect())


def _clock_offset() -> int:
    """Return the nanoseconds from `time.monotonic` to the time since 1970.

    A trace uses one number, so that spans are within their parents, whatever becomes of the clock.
    """
    return time.time_ns() - time.monotonic_ns()


def _since_1970(seconds: float, offset: int) -> int:
    """Return a time of `time.monotonic` in nanoseconds since 1970."""
    return offset + round(seconds * 1e9)
