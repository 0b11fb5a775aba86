"""Spans. OpenTelemetry is imported where there are some."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rollserve_server.errors import DomainError

if TYPE_CHECKING:
    from opentelemetry import trace

__all__ = ["Span", "clock_offset", "since_1970"]


class Span:
    """A named part of a trace. Times are of `time.monotonic`; None stands for now."""

    def __init__(self, tracer: trace.Tracer, span: trace.Span, offset: int) -> None:
        """Wrap a span that has begun; `offset` is the `clock_offset` of the whole trace."""
        self._tracer = tracer
        self._span = span
        self._offset = offset

    def child(self, name: str, began: float | None = None) -> Span:
        """Begin a span within this one."""
        from opentelemetry.trace import set_span_in_context

        context, began = set_span_in_context(self._span), time.monotonic() if began is None else began
        span = self._tracer.start_span(name, context, start_time=since_1970(began, self._offset))
        return Span(self._tracer, span, self._offset)

    def set(self, attributes: Mapping[str, str | int | float]) -> None:
        """Add attributes. Names without a dot get the prefix `rollserve.`."""
        named = {name if "." in name else f"rollserve.{name}": value for name, value in attributes.items()}
        self._span.set_attributes(named)

    def fail(self, error: Exception | str) -> None:
        """Mark the span as failed, with an error's reason. The log has the error's text."""
        from opentelemetry.trace import Status, StatusCode

        if isinstance(error, Exception):
            error = error.reason if isinstance(error, DomainError) else type(error).__name__
        self._span.set_status(Status(StatusCode.ERROR, error))
        self._span.set_attribute("error.type", error)

    def end(self, at: float | None = None) -> None:
        """End the span."""
        self._span.end(since_1970(time.monotonic() if at is None else at, self._offset))


def clock_offset() -> int:
    """Return the nanoseconds from `time.monotonic` to the time since 1970.

    A trace uses one number, so that spans are within their parents, whatever becomes of the clock.
    """
    return time.time_ns() - time.monotonic_ns()


def since_1970(seconds: float, offset: int) -> int:
    """Return a time of `time.monotonic` in nanoseconds since 1970."""
    return offset + round(seconds * 1e9)
