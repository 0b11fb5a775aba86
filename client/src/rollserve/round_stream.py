"""Rounds of continuous sampling as they arrive."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self

import grpc

from rollserve._calls.base_round_stream import BaseReceiver, BaseRoundStream
from rollserve._calls.watchdog import Watchdog
from rollserve_wire.errors import closed_error

if TYPE_CHECKING:
    from rollserve._calls.base_round_stream import StreamParts
    from rollserve.account import Account
    from rollserve.agents import AgentUpdate
    from rollserve.episode_batch import EpisodeBatch
    from rollserve_wire.v1 import sampler_service_pb2 as pb

__all__ = ["RoundStream"]


class RoundStream(BaseRoundStream, Iterator["EpisodeBatch"]):
    """Iterator over the rounds of continuous sampling, each as one batch, whose `round` says where it is from.

    A thread receives and joins the next rounds while the trainer learns. If the connection or the server is lost, the
    stream continues behind the last round that has arrived whole. At the end of its `with` block, or with `end`, the
    stream ends and has an account; after an error in the block, it is cancelled.

    >>> with sampler.stream(fragment_length=128, max_policy_lag=1) as stream:  # doctest: +SKIP
    ...     for batch in stream:
    ...         stream.update_agent(learn(batch))
    >>> print(stream.account)  # doctest: +SKIP

    Raises:
        RollserveError: from iteration, if the call fails.
    """

    def __init__(self, parts: StreamParts) -> None:
        super().__init__(parts)
        self._receiver = self._thread = _Receiver(parts)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        if kind is None and not self._thread.is_closed:
            self.end()
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_thread"):
            self._thread.close()

    def __next__(self) -> EpisodeBatch:
        while not self._has_ended:
            if not self._parts.buffer_rounds:
                self._thread.grant(self._num_handed)
            item = self._thread.rounds.get()
            if item is None:
                self._has_ended = True
            elif isinstance(item, Exception):
                self._thread.rounds.put(item)  # for the next one who asks
                raise item
            else:
                is_wanted = self._is_wanted(item)
                if self._parts.buffer_rounds:
                    self._thread.grant(self._num_handed)
                if is_wanted:
                    return item
        raise StopIteration

    def update_agent(self, agent: AgentUpdate, **options: Any) -> int:
        """Give the workers a new agent, or new parameters, by the stream's connection.

        For arguments and errors, see `Sampler.update_agent`.
        """
        version: int = self._parts.update_agent(agent, **options)
        return version

    def end(self) -> Account:
        """End the stream, once a round that has begun to arrive is complete, and return its account.

        Rounds that have arrived and were not handed out count as unsent.

        Raises:
            RollserveError: the call failed.
        """
        self._thread.end()
        while not self._has_ended:
            item = self._thread.rounds.get()
            if isinstance(item, Exception):
                self._thread.rounds.put(item)
                raise item
            if item is None:
                self._has_ended = True
            else:
                self._count_unread(item)
        return self.account

    def close(self) -> None:
        """Cancel the stream unless it has ended."""
        self._thread.close()


class _Receiver(BaseReceiver):
    """The thread that receives rounds. It does not refer to the stream, which can be garbage-collected.

    Attributes:
        rounds: rounds that have arrived; behind the last one None, or the error that ended the stream.
        is_closed: whether the stream was cancelled.
    """

    def __init__(self, parts: StreamParts) -> None:
        super().__init__(parts)
        self.rounds: queue.SimpleQueue[EpisodeBatch | Exception | None] = queue.SimpleQueue()
        self.is_closed = False
        self._closed = threading.Event()
        self._watchdog = Watchdog(parts.limits.timeout)
        self._lock = threading.Lock()
        self._requests: queue.SimpleQueue[pb.StreamSamplesRequest | None] = queue.SimpleQueue()
        self._call: Any = None

    def start(self) -> None:
        """Open the stream and begin to receive."""
        self._open()
        threading.Thread(target=self._run, name="rollserve-stream", daemon=True).start()

    def grant(self, num_taken: int) -> None:
        """Tell the server how many rounds the trainer has taken."""
        with self._lock:
            if not self.is_ending:
                self._requests.put(self._receipt(num_taken))

    def end(self) -> None:
        """Tell the server that nothing more is wanted."""
        with self._lock:
            if not self.is_ending:
                self.is_ending = True
                self._requests.put(None)

    def close(self) -> None:
        """Cancel the call unless it is over."""
        self.is_closed = True
        self._closed.set()
        self._call.cancel()
        self._requests.put(None)

    def _open(self) -> None:
        with self._lock:
            self._requests.put(None)  # ends the iterator of the call before
            self._requests = queue.SimpleQueue()
            self._requests.put(self._first_request())
            requests = iter(self._requests.get, None)
            self._call = self._parts.method(requests, timeout=self._parts.limits.remaining())

    def _run(self) -> None:
        try:
            self._receive()
        except Exception as error:
            self.rounds.put(error)
        else:
            self.rounds.put(None)
        finally:
            self.reader.close()
            self._requests.put(None)

    def _receive(self) -> None:
        while True:
            try:
                with self._watchdog.over(self._call):
                    message = next(self._call, None)
            except grpc.RpcError as error:
                if self.reader.is_complete:
                    return  # without its account
                self._wait_and_resume(error)
                continue
            if message is None:
                return
            for batch in self._rounds_of(message):
                self.rounds.put(batch)

    def _wait_and_resume(self, error: grpc.RpcError) -> None:
        if self._watchdog.expired:
            raise self._silence_error()
        pause = None if self._closed.is_set() else self._pause(error)
        if pause is None:
            if self._closed.is_set():
                raise closed_error("stream")
            raise self._final_error(error)
        if self._closed.wait(pause):
            raise closed_error("stream")
        self._open()
