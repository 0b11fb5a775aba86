"""Rounds of continuous sampling as they arrive, for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Self

import grpc
import grpc.aio

from rollserve._calls.base_round_stream import BaseReceiver, BaseRoundStream
from rollserve._calls.time_limits import countable
from rollserve_wire.errors import closed_error

if TYPE_CHECKING:
    from rollserve._calls.base_round_stream import StreamParts
    from rollserve.account import Account
    from rollserve.agents import AgentUpdate
    from rollserve.episode_batch import EpisodeBatch
    from rollserve_wire.v1 import sampler_service_pb2 as pb

__all__ = ["AsyncRoundStream"]


class AsyncRoundStream(BaseRoundStream, AsyncIterator["EpisodeBatch"]):
    """Asynchronous iterator over the rounds of continuous sampling; see `rollserve.RoundStream`.

    A task receives and joins the next rounds while others run.

    >>> async with sampler.stream(fragment_length=128, max_policy_lag=1) as stream:  # doctest: +SKIP
    ...     async for batch in stream:
    ...         await stream.update_agent(learn(batch))
    >>> print(stream.account)  # doctest: +SKIP

    Raises:
        RollserveError: from iteration, if the call fails.
    """

    def __init__(self, parts: StreamParts) -> None:
        super().__init__(parts)
        self._receiver = self._task = _Receiver(parts)
        self._task.start()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, *exception: object) -> None:
        if kind is None and not self._task.is_closed:
            await self.end()
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_task"):
            self._task.close_from_any_thread()

    async def __anext__(self) -> EpisodeBatch:
        while not self._has_ended:
            if not self._parts.buffer_rounds:
                self._task.grant(self._num_handed)
            item = await self._task.rounds.get()
            if item is None:
                self._has_ended = True
            elif isinstance(item, Exception):
                self._task.rounds.put_nowait(item)  # for the next one who asks
                raise item
            else:
                is_wanted = self._is_wanted(item)
                if self._parts.buffer_rounds:
                    self._task.grant(self._num_handed)
                if is_wanted:
                    return item
        raise StopAsyncIteration

    async def update_agent(self, agent: AgentUpdate, **options: Any) -> int:
        """Give the workers a new agent, or new parameters; see `rollserve.RoundStream.update_agent`."""
        version: int = await self._parts.update_agent(agent, **options)
        return version

    async def end(self) -> Account:
        """End the stream and return its account; see `rollserve.RoundStream.end`."""
        self._task.end()
        while not self._has_ended:
            item = await self._task.rounds.get()
            if isinstance(item, Exception):
                self._task.rounds.put_nowait(item)
                raise item
            if item is None:
                self._has_ended = True
            else:
                self._count_unread(item)
        return self.account

    def close(self) -> None:
        """Cancel the stream unless it has ended."""
        self._task.close()


class _Receiver(BaseReceiver):
    """The task that receives rounds. It does not refer to the stream, which can be garbage-collected.

    Attributes:
        rounds: rounds that have arrived; behind the last one None, or the error that ended the stream.
        is_closed: whether the stream was cancelled.
    """

    def __init__(self, parts: StreamParts) -> None:
        super().__init__(parts)
        self.rounds: asyncio.Queue[EpisodeBatch | Exception | None] = asyncio.Queue()
        self.is_closed = False
        self._closed = asyncio.Event()
        self._requests: asyncio.Queue[pb.StreamSamplesRequest | None] = asyncio.Queue()
        self._call: Any = None
        self._loop = asyncio.get_running_loop()
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Open the stream and begin to receive."""
        self._open()
        self._running = self._loop.create_task(self._run())

    def grant(self, num_taken: int) -> None:
        """Tell the server how many rounds the trainer has taken."""
        if not self.is_ending:
            self._requests.put_nowait(self._receipt(num_taken))

    def end(self) -> None:
        """Tell the server that nothing more is wanted."""
        if not self.is_ending:
            self.is_ending = True
            self._requests.put_nowait(None)

    def close(self) -> None:
        """Cancel the call unless it is over."""
        self.is_closed = True
        self._closed.set()
        self._call.cancel()
        self._requests.put_nowait(None)

    def close_from_any_thread(self) -> None:
        """Cancel the call unless it is over; any thread may collect a stream."""
        if not self._call.done():
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self.close)

    def _open(self) -> None:
        self._requests.put_nowait(None)  # ends the iterator of the call before
        self._requests = asyncio.Queue()
        self._requests.put_nowait(self._first_request())
        self._call = self._parts.method(_all_of(self._requests), timeout=self._parts.limits.remaining())

    async def _run(self) -> None:
        try:
            await self._receive()
        except Exception as error:
            self.rounds.put_nowait(error)
        except asyncio.CancelledError:
            self.rounds.put_nowait(closed_error("stream"))
        else:
            self.rounds.put_nowait(None)
        finally:
            self.reader.close()
            self._requests.put_nowait(None)

    async def _receive(self) -> None:
        while True:
            try:
                message = await asyncio.wait_for(self._call.read(), countable(self._parts.limits.timeout))
            except TimeoutError:
                self._call.cancel()
                raise self._silence_error() from None
            except grpc.RpcError as error:
                if self.reader.is_complete:
                    return  # without its account
                await self._wait_and_resume(error)
                continue
            if message is grpc.aio.EOF:
                return
            for batch in self._rounds_of(message):
                self.rounds.put_nowait(batch)

    async def _wait_and_resume(self, error: grpc.RpcError) -> None:
        pause = None if self.is_closed else self._pause(error)
        if pause is None:
            raise closed_error("stream") if self.is_closed else self._final_error(error)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._closed.wait(), pause)
        if self.is_closed:
            raise closed_error("stream")
        self._open()


async def _all_of(requests: asyncio.Queue[pb.StreamSamplesRequest | None]) -> AsyncIterator[pb.StreamSamplesRequest]:
    while (request := await requests.get()) is not None:
        yield request
