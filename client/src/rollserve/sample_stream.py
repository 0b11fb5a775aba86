"""What a sampling call brings, as it comes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Self

import grpc

from rollserve._calls.joining import Joining
from rollserve._calls.requests import check_joinable
from rollserve._calls.resumption import Backoff, is_passing
from rollserve._calls.stream_reader import StreamReader
from rollserve._calls.watchdog import Watchdog
from rollserve.errors import closed_error

if TYPE_CHECKING:
    from rollserve._calls.resumption import Request
    from rollserve._calls.time_limits import TimeLimits
    from rollserve.account import Account
    from rollserve.episode_batch import EpisodeBatch
    from rollserve.episode_buffer import EpisodeBuffer

__all__ = ["SampleStream"]


class SampleStream(Iterator["EpisodeBatch"]):
    """The batches of a sampling call as they come; closing it early cancels the call.

    The arrays are views of the messages and cannot be written to. Each batch can be used alone;
    `EpisodeBatch.concatenate(*stream).joined()` makes whole episodes of them. If the connection or the server is lost
    on the way, the stream goes on where it was as soon as both are back, for as long as its timeout.
    """

    def __init__(self, method: Callable[..., Any], request: Request, limits: TimeLimits) -> None:
        self._method = method
        self._limits = limits
        self._reader = StreamReader(request)
        self._blackhole = request.options.blackhole
        self._backoff = Backoff(limits.timeout)
        self._closed = threading.Event()
        self._call = method(request, timeout=limits.remaining())
        self._watchdog = Watchdog(limits.timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_watchdog"):  # else no call was begun
            self.close()

    def __next__(self) -> EpisodeBatch:
        while True:
            try:
                with self._watchdog.over(self._call):
                    response = next(self._call)
            except grpc.RpcError as error:
                if self._watchdog.expired:
                    self.close()
                    raise self._limits.silence_error() from error
                self._resume(error)
                continue
            except StopIteration:
                self.close()
                self._reader.end()
                raise
            batch = self._reader.read(response)
            if self._reader.has_advanced:
                self._backoff.succeed()
            if batch is not None:
                return batch

    def _resume(self, error: grpc.RpcError) -> None:
        """Has another call bring the rest, after a while, or raises the error if it is of no use."""
        resumption = self._reader.resumption
        pause = self._backoff.next_seconds() if is_passing(error) and resumption.possible else None
        if pause is None:
            closed = self._closed.is_set() and error.code() is grpc.StatusCode.CANCELLED
            self.close()
            raise closed_error("stream") if closed else self._limits.error_from_rpc(error) from error
        if self._closed.wait(pause):
            raise closed_error("stream")
        self._call = self._method(resumption.rest(), timeout=self._limits.remaining())

    @property
    def num_simulated_steps(self) -> int:
        """How many steps the call is known to have simulated so far."""
        return self._reader.num_simulated_steps

    def end(self) -> Account:
        """The account, after the stream's end.

        Raises:
            ServerError: there is none.
        """
        return self._reader.end()

    def join(self, *, out: EpisodeBuffer | None = None) -> EpisodeBatch:
        """What is left of the stream as one batch of whole episodes or fragments, with the account.

        Args:
            out: what to read it into, instead of new arrays.
        """
        check_joinable(self._blackhole)
        self._reader.in_place = True
        with Joining(self._reader.num_expected_steps, out) as joining:
            for batch in self:
                joining.add(batch)
                del batch  # before the next one comes
            return joining.join(self.end())

    def close(self) -> None:
        """Cancels the call unless it is over."""
        self._closed.set()
        self._call.cancel()
