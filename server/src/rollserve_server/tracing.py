"""Traces for OpenTelemetry: spans of RPCs and of their parts. Without a collector, nothing is recorded or imported."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING

from rollserve_server.errors import NotFoundError
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from rollserve_server.settings import TracingSettings
    from rollserve_server.spans import Span

__all__ = ["Tracing", "check_tracing", "child_span"]

_rpc_span: ContextVar[Span | None] = ContextVar("rpc_span", default=None)
"""The span of the RPC that the present task answers."""


class Tracing:
    """Makes a span for each RPC that is traced."""

    def __init__(self, settings: TracingSettings) -> None:
        """Connect to the collector that the settings name.

        Raises:
            NotFoundError: OpenTelemetry is not installed.
        """
        assert settings.otlp_endpoint is not None  # noqa: S101
        check_tracing(settings)
        from rollserve_server.spans import SpanCollector

        self._collector = SpanCollector(settings.otlp_endpoint, settings.trace_ratio)

    def begin_rpc(
        self, name: str, began: float, metadata: Callable[[], Iterable[tuple[str, str | bytes]] | None]
    ) -> Span | None:
        """Begin the span of the RPC that the present task answers; return None if the RPC is not traced.

        Args:
            name: the RPC's name.
            began: when it began (`time.monotonic`).
            metadata: returns its metadata, where a client may name the span that it is part of.
        """
        span = self._collector.begin(name, began, metadata() or ())
        _rpc_span.set(span)
        return span

    def close(self) -> None:
        """Send what is left, for at most a few seconds."""
        self._collector.close()


def check_tracing(settings: TracingSettings) -> None:
    """Raise NotFoundError if there is to be a collector, and OpenTelemetry is not installed."""
    if settings.otlp_endpoint is None:
        return
    try:
        import rollserve_server.spans  # noqa: F401  # not before, because it takes a quarter of a second
    except ImportError as error:
        raise NotFoundError.of(
            "otlp_endpoint",
            expected="none, because OpenTelemetry is not installed",
            got=f"{settings.otlp_endpoint!r} ({error})",
            hint="pip install 'rollserve-server[tracing]'",
            reason=Reason.PACKAGE_NOT_FOUND,
        ) from error


def child_span(name: str) -> AbstractContextManager[Span | None]:
    """Record the block as a span of the RPC that the present task answers. Yields None if the RPC is not traced."""
    parent = _rpc_span.get()
    return nullcontext() if parent is None else parent.child(name)
