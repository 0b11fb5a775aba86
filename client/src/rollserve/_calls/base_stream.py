"""Common part of the streams of both samplers: everything except the waiting."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rollserve._calls.resumption import Backoff, may_pass
from rollserve._calls.stream_reader import StreamReader

if TYPE_CHECKING:
    import grpc

    from rollserve._calls.resumption import Request
    from rollserve._calls.time_limits import TimeLimits
    from rollserve.account import Account
    from rollserve.episode_batch import EpisodeBatch

__all__ = ["BaseStream"]


class BaseStream:
    """State of a sampling stream, over all calls that deliver it."""

    def __init__(self, method: Callable[..., Any], request: Request, limits: TimeLimits) -> None:
        self._method = method
        self._limits = limits
        self._reader = StreamReader(request)
        self._blackhole = request.options.blackhole
        self._backoff = Backoff(limits.timeout)
        self._call = method(request, timeout=limits.remaining())

    @property
    def num_simulated_steps(self) -> int:
        """Number of steps that the call has simulated so far, as far as the client knows."""
        return self._reader.num_simulated_steps

    def end(self) -> Account:
        """Return the account of the call, after the end of the stream.

        Raises:
            ServerError: the stream has not ended, or ended without an account.
        """
        return self._reader.end()

    def _read(self, response: Any) -> EpisodeBatch | None:
        """Return the part of a response's batch that was not received before, if there is any."""
        batch = self._reader.read(response)
        if self._reader.has_advanced:
            self._backoff.succeed()
        return batch

    def _pause(self, error: grpc.RpcError) -> float | None:
        """Return the seconds to wait before the stream is resumed, or None if resuming it cannot help."""
        return self._backoff.next_seconds() if may_pass(error) and self._reader.resumption.possible else None

    def _resume(self) -> None:
        """Start the call that delivers the rest of the stream."""
        self._call = self._method(self._reader.resumption.rest(), timeout=self._limits.remaining())
