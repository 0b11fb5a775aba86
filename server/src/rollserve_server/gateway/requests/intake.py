"""Receives requests, so that together they take no more memory than is allowed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

import grpc.aio

from rollserve import Reason
from rollserve_server.admission import ConnectionAdmission
from rollserve_server.errors import InvalidValueError, OverLimitError

if TYPE_CHECKING:
    from rollserve_server.gateway.rpcs import OpenRpc

__all__ = ["Intake"]

_SMALL_BYTES = 4 << 20
"""Of requests that bring neither agents nor environments."""
_MOST_SMALL, _SMALL_PATIENCE_SECONDS = 2, 5.0
"""How many of these are received at the same time, which takes no time, and how long others wait for one that does."""
_NAME_BYTES = 4 << 10
"""Of requests that bring no more than a name."""
_MOST_NAMES, _NAME_PATIENCE_SECONDS = 4, 0.5
"""The same of these: many a client takes a server for dead that has not answered for a second."""
_MOST_QUESTIONS, _QUESTION_PATIENCE_SECONDS = 2, 1.0
"""The same of questions of reflection, whose streams stay open for more of them."""
_PATIENCE_SECONDS = 30.0
"""The same for those that bring agents or environments."""
_MOST_WAITING = 1 << 20
"""There are fewer RPCs."""


class Intake:
    """Receives requests.

    gRPC tells how large a request is when all of it is there, and takes it into memory as soon as somebody reads. So a
    large one is read only when there is room for the largest that may come.
    """

    def __init__(self, max_request_bytes: int, max_pending_bytes: int) -> None:
        """Begins without requests.

        Args:
            max_request_bytes: the largest that can come.
            max_pending_bytes: how much they may take together: a third while they are received, a third for updates
                that are worked on, and a third for evaluations that run. Each third is enough for the largest.
        """
        self._share = max(max_pending_bytes // 3, max_request_bytes)
        # One at a time of each connection: those that do not come are waited for by what comes through the same one,
        # and seldom by others.
        self._receiving = _admission(self._share // max_request_bytes, 1, _PATIENCE_SECONDS)
        self._receiving_small = _admission(_MOST_SMALL, 1, _SMALL_PATIENCE_SECONDS)
        self._receiving_names = _admission(_MOST_NAMES, 1, _NAME_PATIENCE_SECONDS)
        self._receiving_questions = _admission(_MOST_QUESTIONS, 1, _QUESTION_PATIENCE_SECONDS)
        self._num_updating = 0
        self._num_evaluating = 0
        self._updated = asyncio.Condition()

    async def small(self, rpc: OpenRpc) -> bytes:
        """A request that brings neither agents nor environments.

        Raises:
            OverLimitError: it is larger than any of them needs to be.
            InvalidValueError: none comes.
        """
        return await _received(self._receiving_small, rpc, _SMALL_BYTES)

    async def name(self, rpc: OpenRpc) -> bytes:
        """A request that brings no more than a name, as health checks do: no other one keeps it waiting.

        Raises:
            OverLimitError: it is larger than any name needs to be.
            InvalidValueError: none comes.
        """
        return await _received(self._receiving_names, rpc, _NAME_BYTES)

    async def reflection(self, rpc: OpenRpc) -> bytes | None:
        """The next request of a stream of names that are asked about; None when all have come.

        Raises:
            OverLimitError: it is larger than any name needs to be.
            ClientStalledError: none came for a while, and others wait.
        """
        async with contextlib.AsyncExitStack() as stack:
            await self._receiving_questions.admit(stack, rpc)
            data = await _read_next(rpc)
        if data is not None:
            _check_size(data, _NAME_BYTES)
        return data

    @contextlib.asynccontextmanager
    async def update(self, rpc: OpenRpc) -> AsyncGenerator[bytes, None]:
        """The request of an update, for as long as the block. Waits for others where they are too large.

        Raises:
            InvalidValueError: none comes.
        """
        async with contextlib.AsyncExitStack() as stack:
            await self._receiving.admit(stack, rpc)
            data = await _read(rpc)
            async with self._updated:
                await self._updated.wait_for(lambda: self._num_updating + len(data) <= self._share)
                self._num_updating += len(data)
        try:
            yield data
        finally:
            self._num_updating -= len(data)
            async with self._updated:
                self._updated.notify_all()

    @contextlib.asynccontextmanager
    async def evaluation(self, rpc: OpenRpc) -> AsyncGenerator[bytes, None]:
        """The request of an evaluation, for as long as the block.

        Raises:
            OverLimitError: those that run have taken what they may.
            InvalidValueError: none comes.
        """
        async with contextlib.AsyncExitStack() as stack:
            await self._receiving.admit(stack, rpc)
            data = await _read(rpc)
        if self._num_evaluating + len(data) > self._share:
            came = f"a request of {len(data)} bytes came while evaluations hold {self._num_evaluating}"
            text = f"{came}, {self._share} at most were expected: try again when some have ended"
            raise OverLimitError(text, reason=Reason.TOO_MANY_REQUEST_BYTES)
        self._num_evaluating += len(data)
        try:
            yield data
        finally:
            self._num_evaluating -= len(data)


def _admission(max_running: int, max_per_connection: int, patience_seconds: float) -> ConnectionAdmission:
    return ConnectionAdmission(max_running, max_per_connection, patience_seconds, max_waiting=_MOST_WAITING)


async def _received(admission: ConnectionAdmission, rpc: OpenRpc, most_bytes: int) -> bytes:
    async with contextlib.AsyncExitStack() as stack:
        await admission.admit(stack, rpc)
        data = await _read(rpc)
    _check_size(data, most_bytes)
    return data


async def _read(rpc: OpenRpc) -> bytes:
    data = await _read_next(rpc)
    if data is None:
        raise InvalidValueError("the call ended before a request came")
    return data


async def _read_next(rpc: OpenRpc) -> bytes | None:
    """A request of several that may come; None behind the last one."""
    data = await rpc.read()
    if data is grpc.aio.EOF:
        return None
    assert isinstance(data, bytes)  # noqa: S101
    return data


def _check_size(data: bytes, most_bytes: int) -> None:
    if len(data) > most_bytes:
        text = f"a request of {len(data)} bytes came, {most_bytes} at most were expected"
        raise OverLimitError(text, reason=Reason.REQUEST_TOO_LARGE)
