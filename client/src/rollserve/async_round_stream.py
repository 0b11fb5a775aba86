"""Rounds of continuous sampling as they arrive, for asyncio."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Self

import grpc

from rollserve._calls.async_waiting import Queue, Waiting
from rollserve._calls.base_round_stream import BaseReceiver, BaseRoundStream
from rollserve.multi_agent_batch import Batch
from rollserve_wire.errors import closed_error

if TYPE_CHECKING:
    from rollserve._calls.base_round_stream import StreamParts
    from rollserve.account import Account
    from rollserve.agents import AgentUpdate
    from rollserve_wire.v1 import sampler_service_pb2 as pb

__all__ = ["AsyncRoundStream"]


class AsyncRoundStream(BaseRoundStream[Batch], AsyncIterator[Batch]):
    """Async iterator over the rounds of continuous sampling, each as one batch, whose `round` says where it is from.

    A task receives and joins the next rounds while the trainer learns. If the connection or the server is lost, the
    stream continues behind the last round that has arrived whole. At the end of its `async with` block, or with `end`,
    the stream ends and has an account; after an error in the block, it is cancelled.

    >>> async with sampler.stream(fragment_length=128, max_policy_lag=1) as stream:  # doctest: +SKIP
    ...     async for batch in stream:
    ...         await stream.update_agent(learn(batch))
    >>> print(stream.account)  # doctest: +SKIP

    Raises:
        RollserveError: from iteration, if the call fails.
    """

    _receiver: _Receiver[Batch]

    def __init__(self, parts: StreamParts[Batch]) -> None:
        super().__init__(parts)
        receiver = _Receiver(parts)
        receiver.start()
        self._receiver = receiver

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, *exception: object) -> None:
        if kind is None and not self._receiver.is_closed:
            await self.end()
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_receiver") and not self._receiver.is_closed:
            self._receiver.close_from_any_thread()

    async def __anext__(self) -> Batch:
        while not self._has_ended:
            if not self._parts.buffer_rounds:
                self._receiver.grant(self._num_handed)
            item = await self._receiver.rounds.get()
            if item is None:
                self._has_ended = True
            elif isinstance(item, Exception):
                self._receiver.rounds.put_nowait(item)  # for the next one who asks
                raise item
            else:
                is_wanted = self._is_wanted(item)
                if self._parts.buffer_rounds:
                    self._receiver.grant(self._num_handed)
                if is_wanted:
                    return item
        raise StopAsyncIteration

    async def update_agent(self, agent: AgentUpdate, **options: Any) -> int:
        """Give the workers a new agent, or new parameters, by the stream's connection.

        For arguments and errors, see `AsyncSampler.update_agent`.
        """
        version: int = await self._parts.update_agent(agent, **options)
        return version

    async def end(self) -> Account:
        """End the stream, once a round that has begun to arrive is complete, and return its account.

        Rounds that have arrived and were not handed out count as unsent.

        Raises:
            RollserveError: the call failed.
        """
        self._receiver.end()
        while not self._has_ended:
            item = await self._receiver.rounds.get()
            if isinstance(item, Exception):
                self._receiver.rounds.put_nowait(item)
                raise item
            if item is None:
                self._has_ended = True
            else:
                self._count_unread(item)
        return self.account

    def close(self) -> None:
        """Cancel the stream unless it has ended."""
        self._receiver.close()


class _Receiver(BaseReceiver[Batch]):
    """The task that receives rounds. It does not refer to the stream, which can be garbage-collected.

    Attributes:
        rounds: rounds that have arrived; behind the last one None, or the error that ended the stream.
    """

    def __init__(self, parts: StreamParts[Batch]) -> None:
        super().__init__(parts)
        self.rounds: Queue[Batch | Exception | None] = Queue()
        self._waiting = Waiting(parts.limits.timeout)
        self._lock = threading.Lock()  # where streams block, requests come from several threads
        self._requests: Queue[pb.StreamSamplesRequest | None] = Queue()
        self._call: Any = None

    @property
    def is_closed(self) -> bool:
        """Whether the stream was cancelled."""
        return self._waiting.is_closed

    def start(self) -> None:
        """Open the stream and begin to receive."""
        self._open()
        self._waiting.start(self._run)

    def grant(self, num_taken: int) -> None:
        """Tell the server how many rounds the trainer has taken."""
        with self._lock:
            if not self.is_ending:
                self._requests.put_nowait(self._receipt(num_taken))

    def end(self) -> None:
        """Tell the server that nothing more is wanted."""
        with self._lock:
            if not self.is_ending:
                self.is_ending = True
                self._requests.put_nowait(None)

    def close(self) -> None:
        """Cancel the call unless it is over."""
        self._waiting.close(self._call)
        self._requests.put_nowait(None)

    def close_from_any_thread(self) -> None:
        """Cancel the call unless it is over; any thread may collect a stream."""
        self._waiting.from_any_thread(self.close)

    def _open(self) -> None:
        with self._lock:
            self._requests.put_nowait(None)  # ends the iterator of the call before
            self._requests = Queue()
            self._requests.put_nowait(self._first_request())
            self._call = self._parts.method(_all_of(self._requests), timeout=self._parts.limits.remaining())

    async def _run(self) -> None:
        last: Exception | None = closed_error("stream")  # unless this ends of itself
        try:
            await self._receive()
            last = None
        except Exception as error:
            last = error
        finally:
            self.rounds.put_nowait(last)
            self.reader.close()
            self._requests.put_nowait(None)

    async def _receive(self) -> None:
        while True:
            try:
                message = await self._waiting.message(self._call)
            except TimeoutError:
                self._call.cancel()
                raise self._interruptions.silence_error() from self._interruptions.last
            except grpc.RpcError as error:
                if self.reader.is_complete:
                    return  # without its account
                await self._wait_and_resume(error)
                continue
            if message is None:
                return
            for batch in self._rounds_of(message):
                self.rounds.put_nowait(batch)

    async def _wait_and_resume(self, error: grpc.RpcError) -> None:
        pause = self._pause(error)
        if pause is None:
            raise self._interruptions.final_error(error) from self._interruptions.cause_of(error)
        await self._waiting.pause(pause)
        self._open()


async def _all_of(requests: Queue[pb.StreamSamplesRequest | None]) -> AsyncIterator[pb.StreamSamplesRequest]:
    while (request := await requests.get()) is not None:
        yield request
