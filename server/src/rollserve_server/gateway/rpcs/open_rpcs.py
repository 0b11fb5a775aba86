"""Registry of open RPCs, the handlers that gRPC calls, and the bound on messages that clients have not read.

gRPC passes bytes on in both directions: bytes that cannot be parsed are an error like any other, and sampled messages
are bytes already. Every handler takes its request as a stream, because gRPC reads no more of a stream than it is asked
to; clients see no difference.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from rollserve_server.errors import DomainError, OverLimitError
from rollserve_server.gateway.rpcs.open_rpc import Context, OpenRpc
from rollserve_server.gateway.rpcs.statuses import RefusalLog, abort, code_of, described, reason_of
from rollserve_server.request_context import working_for
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from rollserve_server.gateway.access import Access
    from rollserve_server.gateway.audit import AuditLog
    from rollserve_server.gateway.rpcs.places import Places
    from rollserve_server.metrics import Metrics, RpcEnd
    from rollserve_server.spans import Span
    from rollserve_server.tracing import Tracing

__all__ = ["OpenRpcs"]

_R = TypeVar("_R")
_log = logging.getLogger(__name__)

_MAX_UNREAD_BYTES = 256 << 20
"""Largest size of messages of ended RPCs that clients have not read. If a client never reads its message, gRPC frees it
only with the connection."""


class OpenRpcs:
    """Registry of the RPCs that are being answered.

    Attributes:
        stall_seconds: how long an RPC may wait for its client at a time.
        audit_log: has a line for each RPC; None for no lines.
    """

    def __init__(
        self,
        stall_seconds: float,
        places: Places,
        metrics: Metrics,
        access: Access | None = None,
        audit_log: AuditLog | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        """Start without RPCs.

        Args:
            stall_seconds: how long an RPC may wait for its client at a time.
            places: bounds the number of open RPCs.
            metrics: counts the RPCs.
            access: decides which RPCs are answered; None for all.
            audit_log: has a line for each RPC; None for no lines.
            tracing: makes spans of RPCs; None for no spans.
        """
        self.stall_seconds = stall_seconds
        self.audit_log = audit_log
        self._access = access
        self._tracing = tracing
        self._places = places
        self._metrics = metrics
        self._refusals = RefusalLog()
        self._awaited: set[OpenRpc] = set()
        self._none_left = asyncio.Event()
        self._num_unread_bytes = 0

    async def _answered(
        self, name: str, context: Context, answer: Callable[[OpenRpc], Awaitable[_R]], *, is_awaited: bool
    ) -> _R:
        """Open an RPC until it is answered, and return the answer. An error becomes the RPC's status.

        Args:
            name: the RPC's name, without its service.
            context: the RPC as gRPC has it.
            answer: answers the open RPC.
            is_awaited: whether a server that stops waits for the RPC, and ends it after the grace period.
        """
        rpc = OpenRpc(name, context, self.stall_seconds)
        rpc.is_audited, rpc.is_logged = self.audit_log is not None, _log.isEnabledFor(logging.DEBUG)
        if is_awaited:
            self._awaited.add(rpc)
        span = None
        if self._tracing is not None:
            span = self._tracing.begin_rpc(name, rpc.began, context.invocation_metadata)
        with self._metrics.counting(name) as end, working_for(rpc.request_id):
            try:
                try:
                    async with rpc.endable():
                        if self._access is not None:
                            await rpc.admit(self._access)
                        with self._places.held_by(rpc), rpc.held:
                            return await answer(rpc)
                except Exception as error:
                    end.status, end.reason = code_of(error).name, reason_of(error)
                    raise
                except BaseException:
                    end.status = "CANCELLED"
                    raise
                finally:
                    if self.audit_log is not None:  # before the client has the status
                        self.audit_log.write(rpc, end.status, end.reason)
            except Exception as error:  # nothing unforeseen may reach the client
                self._num_unread_bytes += rpc.num_unread_bytes
                try:
                    await rpc.initial_metadata_sent()
                    await abort(context, error, rpc, self._refusals)
                finally:  # gRPC keeps the message until the client knows of the RPC's end
                    self._num_unread_bytes -= rpc.num_unread_bytes
            finally:
                self._awaited.discard(rpc)
                if not self._awaited:
                    self._none_left.set()
                if span is not None:
                    _end_span(span, rpc, end)
                if rpc.is_logged and not end.reason:  # else the log has its error
                    _log_end(rpc, end)

    def unary_handler(
        self,
        name: str,
        respond: Callable[[OpenRpc], Awaitable[Message]],
        *,
        is_awaited: bool = True,
        why_late: str = "",
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """Return the handler of an RPC with one response.

        Args:
            name: the RPC's name, without its service.
            respond: reads the request of an open RPC, and returns the response.
            is_awaited: whether a server that stops waits for the RPC.
            why_late: what may take longer than the client's time for the RPC, which it then hears; empty for nothing.
        """

        async def answer(rpc: OpenRpc) -> bytes:
            if why_late:
                rpc.end_before_deadline(why_late)
            return (await respond(rpc)).SerializeToString()

        async def handle(_: object, context: Context) -> bytes:
            return await self._answered(name, context, answer, is_awaited=is_awaited)

        return grpc.stream_unary_rpc_method_handler(handle, None, None)

    def stream_handler(
        self,
        name: str,
        respond: Callable[[OpenRpc], Awaitable[None]],
        *,
        is_awaited: bool = True,
        limits_unread: bool = True,
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """Return the handler of an RPC with a stream of responses.

        Args:
            name: the RPC's name, without its service.
            respond: reads the requests of an open RPC, and writes the responses.
            is_awaited: whether a server that stops waits for the RPC.
            limits_unread: whether the RPC is refused while clients leave too much of ended RPCs unread.
        """

        async def answer(rpc: OpenRpc) -> None:
            if limits_unread:
                self.check_unread()
            await respond(rpc)

        async def handle(_: object, context: Context) -> None:
            await self._answered(name, context, answer, is_awaited=is_awaited)

        return grpc.stream_stream_rpc_method_handler(handle, None, None)

    def end(self, error: DomainError) -> None:
        """End all awaited RPCs with an error."""
        for rpc in list(self._awaited):
            rpc.end(copy.copy(error))

    async def wait_until_none(self, seconds: float) -> None:
        """Wait until no awaited RPC is open, or for so many seconds."""
        deadline = time.monotonic() + seconds
        while self._awaited:
            self._none_left.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._none_left.wait(), max(deadline - time.monotonic(), 0))
            if time.monotonic() >= deadline:
                return

    def check_unread(self) -> None:
        """Raise OverLimitError if clients have left too much of ended RPCs unread for another stream to begin."""
        if self._num_unread_bytes > _MAX_UNREAD_BYTES:
            expected = f"at most {_MAX_UNREAD_BYTES} bytes of ended calls that clients have not read"
            got = f"{self._num_unread_bytes} bytes"
            hint = "read each stream to its end, or close the connection"
            raise OverLimitError.of("", expected=expected, got=got, hint=hint, reason=Reason.TOO_MANY_STALLED_CALLS)


def _log_end(rpc: OpenRpc, end: RpcEnd) -> None:
    """Log that an RPC has succeeded, or that its client has left, with what it did."""
    fields = {**described(rpc), "status": end.status}
    _log.debug("call ended", extra=fields | {name: round(value, 6) for name, value in rpc.figures.items()})


def _end_span(span: Span, rpc: OpenRpc, end: RpcEnd) -> None:
    """End the span of an RPC, with what is known about it by now."""
    attributes = {
        "rpc.system.name": "grpc",
        "rpc.method": rpc.name,
        "rpc.response.status_code": end.status,
        "request_id": rpc.request_id,
        "sampler": rpc.shown_sampler,
        "peer": rpc.connection,
    }
    if rpc.principal is not None and rpc.principal.is_known:
        attributes["principal"] = rpc.principal.name
    span.set(attributes)
    if end.reason:
        span.fail(end.reason)
    span.end()
