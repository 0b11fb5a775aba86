"""Batches of datasets on a server as they come, for asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Self

import grpc

from rollserve._calls.async_waiting import Waiting
from rollserve._calls.base_dataset_stream import BaseDatasetStream

if TYPE_CHECKING:
    from rollserve._calls.interruptions import Contact
    from rollserve._calls.time_limits import TimeLimits
    from rollserve.episode_batch import EpisodeBatch
    from rollserve_wire.v1 import sampler_service_pb2 as pb

__all__ = ["AsyncDatasetStream"]


class AsyncDatasetStream(BaseDatasetStream, AsyncIterator["EpisodeBatch"]):
    """Async iterator over the batches of datasets on a server.

    If the connection or the server is lost, it goes on behind its last batch once both are back. Closing the stream, or
    leaving its `async with` block, cancels the call.

    Raises:
        RollserveError: from iteration, if the call fails.
    """

    def __init__(
        self, method: Callable[..., Any], request: pb.ReadDatasetRequest, limits: TimeLimits, contact: Contact
    ) -> None:
        self._waiting = Waiting(limits.timeout)
        super().__init__(method, request, limits, contact)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.close()

    async def __anext__(self) -> EpisodeBatch:
        while True:
            try:
                response = await self._waiting.message(self._call)
            except TimeoutError:
                self.close()
                raise self._interruptions.silence_error() from self._interruptions.last
            except grpc.RpcError as error:
                await self._waiting.pause(self._pause(error))
                self._go_on()
                continue
            if response is None:
                raise StopAsyncIteration
            if (batch := self._take(response)) is not None:
                return batch

    def close(self) -> None:
        """Cancel the call."""
        self._waiting.close(self._call)
