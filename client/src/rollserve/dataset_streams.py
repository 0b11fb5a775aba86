"""Batches of datasets on a server as they come: a stream that blocks, and one for asyncio."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

import grpc
import grpc.aio

from rollserve._calls.cancellation import closed_unless_task_cancelled
from rollserve._calls.dataset_reads import DatasetReading
from rollserve._calls.interruptions import Interruptions
from rollserve._calls.time_limits import countable
from rollserve._calls.watchdog import Watchdog
from rollserve.episode_batch import EpisodeBatch

if TYPE_CHECKING:
    from rollserve._calls.contact import Contact
    from rollserve._calls.time_limits import TimeLimits
    from rollserve.data.reader import Position
    from rollserve.data.sources import MixPosition
    from rollserve_wire.v1 import sampler_service_pb2 as pb

__all__ = ["AsyncDatasetStream", "DatasetStream"]


class _BaseDatasetStream:
    """Everything of both streams except the waiting."""

    def __init__(
        self, method: Callable[..., Any], request: pb.ReadDatasetRequest, limits: TimeLimits, contact: Contact
    ) -> None:
        self._method, self._limits, self._contact = method, limits, contact
        self._reading = DatasetReading(request)
        self._interruptions = Interruptions(limits, contact)
        self._call = method(request, timeout=limits.remaining())

    @property
    def mix_position(self) -> MixPosition:
        """Positions of all sources behind the last batch."""
        return self._reading.position

    @property
    def position(self) -> Position:
        """Position of the first source behind the last batch: three integers, which JSON can hold."""
        return self._reading.position.sources[0]

    @property
    def missing(self) -> Mapping[str, str]:
        """Description of what the files lack, by the field of `EpisodeBatch`; known with the first batch."""
        return {name: text for content in self._reading.contents for name, text in content.missing.items()}

    @property
    def receipts(self) -> tuple[str, ...]:
        """Receipts in the files, as JSON; known with the first batch."""
        return tuple(receipt for content in self._reading.contents for receipt in content.receipts)

    def close(self) -> None:
        """Cancel the call."""
        self._call.cancel()

    def _take(self, response: bytes) -> EpisodeBatch | None:
        self._contact.was_made = True
        batch = self._reading.read(response)
        if batch is not None:
            self._interruptions.advance()
        return batch

    def _pause(self, error: grpc.RpcError) -> float:
        """Return the seconds to wait before the read goes on, or raise the error if that cannot help."""
        pause = self._interruptions.pause(error, has_begun=self._reading.has_begun)
        if pause is None:
            raise self._interruptions.final_error(error) from self._interruptions.cause_of(error)
        return pause

    def _go_on(self) -> None:
        self._reading.begin()
        self._call = self._method(self._reading.request, timeout=self._limits.remaining())


class DatasetStream(_BaseDatasetStream, Iterator[EpisodeBatch]):
    """Iterator over the batches of datasets on a server.

    If the connection or the server is lost, it goes on behind its last batch once both are back. Closing the stream, or
    leaving its `with` block, cancels the call.

    Raises:
        RollserveError: from iteration, if the call fails.
    """

    def __init__(
        self, method: Callable[..., Any], request: pb.ReadDatasetRequest, limits: TimeLimits, contact: Contact
    ) -> None:
        super().__init__(method, request, limits, contact)
        self._watchdog = Watchdog(limits.timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __next__(self) -> EpisodeBatch:
        while True:
            try:
                with self._watchdog.over(self._call):
                    response = next(self._call, None)
            except grpc.RpcError as error:
                if self._watchdog.expired:
                    raise self._interruptions.silence_error() from self._interruptions.last
                time.sleep(self._pause(error))
                self._go_on()
                continue
            if response is None:
                raise StopIteration
            if (batch := self._take(response)) is not None:
                return batch


class AsyncDatasetStream(_BaseDatasetStream, AsyncIterator[EpisodeBatch]):
    """Asynchronous iterator over the batches of datasets on a server; see `rollserve.DatasetStream`."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.close()

    async def __anext__(self) -> EpisodeBatch:
        while True:
            try:
                with closed_unless_task_cancelled("stream"):
                    response = await asyncio.wait_for(self._call.read(), countable(self._limits.timeout))
            except TimeoutError:
                self.close()
                raise self._interruptions.silence_error() from self._interruptions.last
            except grpc.RpcError as error:
                await asyncio.sleep(self._pause(error))
                self._go_on()
                continue
            if response is grpc.aio.EOF:
                raise StopAsyncIteration
            if (batch := self._take(response)) is not None:
                return batch
