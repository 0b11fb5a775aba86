"""An open RPC: reads, writes, and an end from outside."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections import Counter
from collections.abc import AsyncGenerator, Coroutine, Generator
from typing import TYPE_CHECKING, Any

import grpc.aio

from rollserve_server.errors import AtWorkError, ClientStalledError, DomainError, InvalidValueError, shorten
from rollserve_server.futures import in_background
from rollserve_server.gateway.access import check_scope
from rollserve_server.gateway.peers import charged_peer
from rollserve_server.identity import ANONYMOUS, Scope

if TYPE_CHECKING:
    from rollserve_server.gateway.access import Access
    from rollserve_server.identity import Principal

__all__ = ["Context", "OpenRpc"]

Context = Any
"""The RPC as gRPC passes it to handlers. `grpc.aio.ServicerContext` is generic in its stubs only."""

_LOCAL_PEERS = ("unix:", "unix-abstract:", "ipv4:127.", "ipv6:[::1]:", "ipv6:%5B::1%5D:")
_MAX_NAME = 200  # characters
_CANCEL_SECONDS = 5.0
"""How long gRPC may take to cancel the RPC of a client that has left, after an operation failed because of that."""


_ANSWER_SECONDS = 1.0
"""How long the last answer may take to the client."""


class OpenRpc:
    """An RPC that is being answered. Its client is a receiver, as far as admission is concerned.

    Attributes:
        name: the RPC's name, without its service.
        request_id: random name of this request, which the log and the client's error have in common.
        began: when it was opened (`time.monotonic`).
        connection: the client's connection, as gRPC names it.
        peer: the client, for turns and shares: its principal, or its connection if that is not known.
        charged_to: whom the RPC is charged to; clients may share them: an address, and a principal if it is known.
        principal: who the client is; None before that is known.
        sampler: name of the sampler that it concerns.
        changes: its effects, for the audit log.
        is_audited: whether there is an audit log.
        is_logged: whether the log has an event for the RPC although it succeeds.
        figures: what the calls that it made did, for that event.
        unsent_since: since when a request is due that has not arrived (`time.monotonic`), or None.
        stalled_since: when the RPC began to wait for its client (`time.monotonic`), or None while it does not wait.
        num_unread_bytes: size of the message that the client has not read yet.
        held: what the RPC keeps until it has ended.
    """

    def __init__(self, name: str, context: Context, stall_seconds: float) -> None:
        """Open an RPC.

        Args:
            name: the RPC's name, without its service.
            context: the RPC as gRPC has it.
            stall_seconds: how long the RPC may wait for its client at a time.
        """
        self.name = name
        self.request_id = secrets.token_hex(8)
        self.began = time.monotonic()
        self.connection: str = context.peer()
        self.peer: str = self.connection
        self.charged_to: tuple[str, ...] = (charged_peer(self.connection),)
        self.principal: Principal | None = None
        self.sampler = ""
        self.changes: dict[str, object] = {}
        self.unsent_since: float | None = time.monotonic()
        self.stalled_since: float | None = None
        self.num_unread_bytes = 0
        self.is_audited = False
        self.is_logged = False
        self.figures: Counter[str] = Counter()
        self.held = contextlib.ExitStack()
        self._context = context
        self._stall_seconds = self._limit_seconds = stall_seconds
        self._scope = asyncio.timeout(None)
        self._is_open = False
        self._initial_metadata: asyncio.Future[None] | None = None
        self._error: DomainError | None = None
        self._access: Access | None = None
        self._named_sampler = ""

    @property
    def shown_sampler(self) -> str:
        """Name of the sampler, as far as the log shows it: the client chooses it."""
        return shorten(self.sampler, _MAX_NAME)

    @property
    def sees_processes(self) -> bool:
        """Whether the client may learn machines and process ids, which others have no use for."""
        return self.sees_all or (not self._is_known and self.connection.startswith(_LOCAL_PEERS))

    @property
    def sees_all(self) -> bool:
        """Whether the client may learn what is hidden from others."""
        return self._is_known and self.has(Scope.SAMPLER_ADMIN)

    async def admit(self, access: Access) -> None:
        """Find out who the client is, and whether it may call this RPC, without its request.

        Raises:
            UnauthenticatedError: the client does not prove who it is.
            NotAllowedError: it has not the scope.
            InvalidValueError: the metadata is malformed.
        """
        self._named_sampler = access.named_sampler(self._context)
        self.sampler = self._named_sampler or access.own_sampler
        principal = await access.principal_of(self._context)
        self.principal = principal
        if principal.is_known:
            self.peer = f"principal {principal.name}"
            self.charged_to += (self.peer,)
        access.check(principal, self.name, self.sampler)
        self._access = access

    def use_sampler(self, name: str) -> str:
        """Return the sampler that the request is for, by the name in it, which may be empty.

        Raises:
            NotAllowedError: the client has not the scope there.
            InvalidValueError: the metadata names another one.
        """
        if name and self._named_sampler and name != self._named_sampler:
            expected = f"{self._named_sampler!r}, as in the metadata, or nothing"
            raise InvalidValueError.of("sampler", expected=expected, got=repr(name))
        if name and name != self.sampler:
            if self._access is not None and self.principal is not None:
                self._access.check(self.principal, self.name, name)
            self.sampler = name
        return self.sampler

    def require(self, scope: Scope, what: str) -> None:
        """Raise NotAllowedError unless the client has a further scope on the sampler, which its request needs."""
        check_scope(self.principal or ANONYMOUS, scope, what, self.sampler)

    @property
    def _is_known(self) -> bool:
        return self.principal is not None and self.principal.is_known

    def has(self, scope: Scope) -> bool:
        """Whether the client has a scope on the sampler."""
        return (self.principal or ANONYMOUS).has(scope, self.sampler)

    @contextlib.asynccontextmanager
    async def endable(self) -> AsyncGenerator[None, None]:
        """End the block when `end` is called, or when the client has stalled for too long.

        Raises:
            DomainError: the error that the RPC was ended with.
        """
        try:
            async with self._scope:
                self._is_open = True
                try:
                    yield
                finally:
                    self._is_open = False
        except TimeoutError:
            if not self._scope.expired():
                raise
            text = f"the client did not read what was ready, or send what it began to, for {self._limit_seconds:g} s"
            raise self._error or ClientStalledError(text) from None

    def end(self, error: DomainError) -> None:
        """End the RPC with an error, unless it has ended. May be called more than once."""
        if self._is_open and self._error is None and not self._scope.expired():
            self._error = error
            self._scope.reschedule(asyncio.get_running_loop().time())

    def end_before_deadline(self, why: str) -> None:
        """End the RPC just before the client's time for it is over, so that the client hears why it has no answer.

        Args:
            why: what may take so long.
        """
        seconds = self._context.time_remaining()
        if seconds is not None:
            margin = min(_ANSWER_SECONDS, seconds / 10)
            text = f"{self.name} was still at work after {seconds - margin:.3g} s: {why}; give it a longer timeout"

            def end() -> None:
                if self.unsent_since is None:  # else the client's own time is over, for sending the request
                    self.end(AtWorkError(text))

            timer = asyncio.get_running_loop().call_later(max(seconds - margin, 0.0), end)
            self.held.callback(timer.cancel)

    @contextlib.contextmanager
    def waiting_for_client(self, max_seconds: float | None = None) -> Generator[None, None, None]:
        """Count the time of the block as time in which the client stalls, and bound it."""
        self.stalled_since = time.monotonic()
        self._limit_seconds = min(max_seconds or self._stall_seconds, self._stall_seconds)
        self._end_after(self._limit_seconds)
        try:
            yield
        finally:
            self.stalled_since = None
            self._end_after(None)

    async def read(self, max_seconds: float | None = None) -> Any:
        """Return the next request as bytes, which may take so long, or `grpc.aio.EOF` after the last one."""
        self.unsent_since = self.unsent_since or time.monotonic()
        with self.waiting_for_client(max_seconds):
            data = await _finished(self._context.read())
        self.unsent_since = None
        return data

    async def read_any_time(self) -> Any:
        """Return the next request as bytes, or `grpc.aio.EOF`; the client need not send any, so it does not stall."""
        return await _finished(self._context.read())

    def begin_response(self) -> asyncio.Future[None]:
        """Begin to send the initial metadata, unless that has begun; return its end, which the first message awaits."""
        if self._initial_metadata is None:
            self._initial_metadata = in_background(self._context.send_initial_metadata(()))
        return self._initial_metadata

    async def write(self, message: bytes) -> None:
        """Send a message as soon as the client has room for it."""
        self.num_unread_bytes = len(message)
        with self.waiting_for_client():
            await _finished(self._write(message))
        self.num_unread_bytes = 0

    async def _write(self, message: bytes) -> None:
        await self.begin_response()
        await self._context.write(message)

    async def initial_metadata_sent(self) -> None:
        """Wait until the initial metadata is sent, if that has begun.

        Otherwise gRPC would send the initial metadata a second time, with the status of an RPC that is ended, and fail.
        """
        if self._initial_metadata is not None:
            await asyncio.wait({self._initial_metadata})

    def _end_after(self, seconds: float | None) -> None:
        """Bound the time until the client reads or sends something; None for no bound."""
        if self._error is None and self._is_open and not self._scope.expired():
            self._scope.reschedule(None if seconds is None else asyncio.get_running_loop().time() + seconds)


async def _finished(operation: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of an operation of gRPC. If the client has left, wait for gRPC to cancel the RPC.

    The operation outlives its caller: gRPC does not free the message of one that is cancelled by itself.
    """
    try:
        return await asyncio.shield(in_background(operation))
    except grpc.aio.InternalError:
        await asyncio.sleep(_CANCEL_SECONDS)
        raise
