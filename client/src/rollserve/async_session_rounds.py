"""Rounds of a session that another client acts in, for asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Self

import grpc

from rollserve._calls.async_waiting import Queue, Waiting
from rollserve._calls.base_session_rounds import HAS_ALL, BaseSessionRounds
from rollserve.multi_agent_batch import Batch

if TYPE_CHECKING:
    from rollserve._calls.base_session_rounds import ReadingParts
    from rollserve_wire.v1 import sampler_service_pb2 as pb

__all__ = ["AsyncSessionRounds"]


class AsyncSessionRounds(BaseSessionRounds[Batch], AsyncIterator[Batch]):
    """Async iterator over the rounds of a session that another client acts in, each as one batch, until its end.

    A round counts as taken when the next one is asked for: until then, another reader would get it again. If the
    connection is lost, the iterator goes on behind the last round that has arrived.

    >>> async for batch in sampler.session_rounds(token):  # doctest: +SKIP
    ...     learn(batch)

    Raises:
        RollserveError: from iteration, if the session fails, behind its last whole round.
    """

    def __init__(self, parts: ReadingParts[Batch]) -> None:
        super().__init__(parts)
        self._waiting = Waiting(parts.limits.timeout, "session")
        self._open()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.close()

    async def __anext__(self) -> Batch:
        if self._num_rounds and not self._has_ended:
            self._requests.put_nowait(self._receipt())
        while not self._has_ended:
            batch = await self._next()
            if batch is not None:
                return batch
        raise StopAsyncIteration

    def close(self) -> None:
        """Stop reading. Another reader may go on."""
        self._waiting.close(self._call)
        self._requests.put_nowait(None)

    def _open(self) -> None:
        """Begin a stream with the rounds that have not arrived."""
        self._requests: Queue[pb.DriveEnvironmentsRequest | None] = Queue()
        self._requests.put_nowait(self._first_request())
        self._call: Any = self._parts.method(_all_of(self._requests), timeout=self._parts.limits.remaining())

    async def _next(self) -> Batch | None:
        """Wait for a message; return the round that it completes, if any. Begin again where the stream is lost."""
        try:
            message = await self._waiting.message(self._call)
        except TimeoutError:
            self.close()
            raise self._interruptions.silence_error() from self._interruptions.last
        except grpc.RpcError as error:
            if self._reader.has_ended:
                self._has_ended = True
                return None
            seconds = self._pause(error)
            if seconds is None:
                raise self._interruptions.final_error(error) from self._interruptions.cause_of(error)
            self._requests.put_nowait(None)  # ends the iterator of the stream before
            await self._waiting.pause(seconds)
            self._open()
            return None
        if message is None:
            self._has_ended = True
            self._requests.put_nowait(None)
            return None
        batch = self._read(message)
        if self._reader.has_ended:
            self._requests.put_nowait(HAS_ALL)
        return batch


async def _all_of(requests: Queue[pb.DriveEnvironmentsRequest | None]) -> AsyncIterator[pb.DriveEnvironmentsRequest]:
    while (request := await requests.get()) is not None:
        yield request
