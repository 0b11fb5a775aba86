"""Batches of a sampling call as they arrive, for asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Self

import grpc

from rollserve._calls.async_waiting import Waiting
from rollserve._calls.base_stream import BaseStream
from rollserve._calls.joining import Joining
from rollserve._calls.requests import check_joinable
from rollserve.multi_agent_batch import Batch, checked_batch

if TYPE_CHECKING:
    from rollserve._calls.interruptions import Contact
    from rollserve._calls.own_versions import OwnVersions
    from rollserve._calls.resumption import Request
    from rollserve._calls.time_limits import TimeLimits
    from rollserve.episode_buffer import EpisodeBuffer
    from rollserve.progress import ProgressOption

__all__ = ["AsyncSampleStream"]


class AsyncSampleStream(BaseStream[Batch], AsyncIterator[Batch]):
    """Async iterator over the batches of a sampling call, as they arrive.

    The arrays of a batch are read-only views of the message. Each batch can be used alone;
    `EpisodeBatch.concatenate(*batches).joined()` gives whole episodes. If the connection or the server is lost, the
    stream continues where it was once both are back. It ends with the last error if no new data has arrived for its
    timeout since then. Closing the stream, or leaving its `async with` block, cancels the call unless it is over.

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
        batch_kind: type[Batch],
        limits: TimeLimits,
        contact: Contact,
        own_versions: OwnVersions,
        progress: ProgressOption | None = None,
    ) -> None:
        self._waiting = Waiting(limits.timeout)
        super().__init__(method, request, batch_kind, limits, contact, own_versions, progress)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_call") and not self._waiting.is_closed:  # without a call, none was started
            self._end_reports()
            self._waiting.from_any_thread(self._call.cancel)

    async def __anext__(self) -> Batch:
        while True:
            while self._unread:
                if (batch := self._read_next()) is not None:
                    return batch
            try:
                response = await self._waiting.message(self._call)
            except TimeoutError:
                self.close()
                raise self._interruptions.silence_error() from self._interruptions.last
            except grpc.RpcError as error:
                await self._wait_and_resume(error)
                continue
            if response is None:
                self.close()
                self._reader.end()
                raise StopAsyncIteration
            self._take(response)

    async def join(self, *, out: EpisodeBuffer | None = None) -> Batch:
        """Return the rest of the stream as one batch of whole episodes or fragments, with the account.

        The account covers the whole stream. If the first part of an episode was read before, its rest is a segment that
        begins later.

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
            whole = checked_batch(joining.join(self.end(), before), self._batch_kind)
            return self._with_moments(whole, before)

    def close(self) -> None:
        """Cancel the call unless it is over."""
        self._waiting.close(self._call)
        self._end_reports()

    async def _wait_and_resume(self, error: grpc.RpcError) -> None:
        """Resume the stream after a pause, or raise the error if resuming cannot help."""
        pause = self._pause(error)
        if pause is None:
            self.close()
            raise self._interruptions.final_error(error) from self._interruptions.cause_of(error)
        await self._waiting.pause(pause)
        self._resume()
