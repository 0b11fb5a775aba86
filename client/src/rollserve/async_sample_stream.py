"""Batches of a sampling call as they arrive, for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Self

import grpc
import grpc.aio

from rollserve._calls.base_stream import BaseStream
from rollserve._calls.cancellation import closed_unless_task_cancelled
from rollserve._calls.joining import Joining
from rollserve._calls.requests import check_joinable
from rollserve._calls.time_limits import countable
from rollserve_wire.errors import closed_error

if TYPE_CHECKING:
    from rollserve._calls.interruptions import Contact
    from rollserve._calls.own_versions import OwnVersions
    from rollserve._calls.resumption import Request
    from rollserve._calls.time_limits import TimeLimits
    from rollserve.episode_batch import EpisodeBatch
    from rollserve.episode_buffer import EpisodeBuffer
    from rollserve.progress import ProgressOption

__all__ = ["AsyncSampleStream"]


class AsyncSampleStream(BaseStream, AsyncIterator["EpisodeBatch"]):
    """Asynchronous iterator over the batches of a sampling call, as they arrive.

    The arrays of a batch are read-only views of the message. Each batch can be used alone. If the connection or the
    server is lost, the stream continues where it was, like `rollserve.SampleStream`. Closing the stream, or leaving its
    `async with` block, cancels the call unless it is over.

    >>> async with sampler.stream_samples(10_000) as stream:  # doctest: +SKIP
    ...     async for batch in stream:
    ...         print(batch.num_steps)
    >>> print(stream.end())  # doctest: +SKIP

    Raises:
        RollserveError: from iteration, if the call fails.
    """

    def __init__(
        self,
        method: Callable[..., Any],
        request: Request,
        limits: TimeLimits,
        contact: Contact,
        own_versions: OwnVersions,
        progress: ProgressOption | None = None,
    ) -> None:
        self._closed = False
        self._loop = asyncio.get_running_loop()
        super().__init__(method, request, limits, contact, own_versions, progress)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not hasattr(self, "_call"):  # the call was never started
            return
        self._end_reports()
        if not self._call.done():
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._call.cancel)  # any thread may collect the stream

    async def __anext__(self) -> EpisodeBatch:
        while True:
            while self._unread:
                if (batch := self._read_next()) is not None:
                    return batch
            try:
                with closed_unless_task_cancelled("stream"):
                    response = await asyncio.wait_for(self._call.read(), countable(self._limits.timeout))
            except TimeoutError:
                self.close()
                raise self._interruptions.silence_error() from self._interruptions.last
            except grpc.RpcError as error:
                await self._wait_and_resume(error)
                continue
            if response is grpc.aio.EOF:
                self._reader.end()
                raise StopAsyncIteration
            self._take(response)

    async def join(self, *, out: EpisodeBuffer | None = None) -> EpisodeBatch:
        """Return the rest of the stream as one batch of whole episodes or fragments, with the account.

        The account is that of the whole stream. If the first part of an episode was read before, its rest is a segment
        that begins later.

        Args:
            out: buffer to read the batch into, instead of new arrays.

        Raises:
            RollserveError: the call failed, or it discards its batches because of `blackhole`.
            ValueError: another call uses the buffer.
        """
        check_joinable(self._blackhole)
        self._reader.in_place = True
        before = self._reader.resumption.received
        with Joining(self._reader.num_expected_steps, out) as joining:
            async for batch in self:
                joining.add(batch)
                del batch  # frees the message before the next one arrives
            return self._with_moments(joining.join(self.end(), before), before)

    def close(self) -> None:
        """Cancel the call unless it is over."""
        self._closed = True
        self._call.cancel()
        self._end_reports()

    async def _wait_and_resume(self, error: grpc.RpcError) -> None:
        """Resume the stream after a pause, or raise the error if resuming cannot help."""
        pause = self._pause(error)
        if pause is None:
            self._end_reports()
            raise self._interruptions.final_error(error) from self._interruptions.cause_of(error)
        await asyncio.sleep(pause)
        if self._closed:
            raise closed_error("stream") from None
        self._resume()
