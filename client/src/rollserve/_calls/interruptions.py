"""Interruptions of calls: which gateway is asked, how often and after which pause, and the error at the end."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import grpc

from rollserve._calls.gateways import ELSEWHERE, Gateways, Search
from rollserve._calls.rpc_errors import error_from_rpc, reason_of, status_of
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from rollserve._calls.connection import Connection
    from rollserve._calls.time_limits import TimeLimits
    from rollserve_wire.errors import DeadlineError, RollserveError

__all__ = ["Backoff", "Contact", "Interruptions"]


# The server itself has tried again before it sends the first three, and has lost a worker each time.
_FINAL = (Reason.WORKER_LOST_AGAIN, Reason.WORKER_HUNG, Reason.WORKER_OUT_OF_MEMORY, Reason.TLS_FAILED)


class Contact:
    """Contact with the server of one connection.

    A call that begins while the server is away, or that loses it before its own beginning, waits for the server, within
    the call's own time limits, if the server has answered before. Otherwise the address may be wrong, so the call fails
    at once.

    Attributes:
        connection: arguments of the connection.
        gateways: gateways that the connection's target stands for.
        was_made: whether the server has answered.
        is_closed: whether the client has closed the connection.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.gateways = Gateways(connection.target)
        self.was_made = self.is_closed = False

    def is_lost(self, error: grpc.RpcError) -> bool:
        """Whether an error means that a server which has answered before is away, or about to be."""
        return self.was_made and status_of(error) is grpc.StatusCode.UNAVAILABLE and reason_of(error) in ELSEWHERE


class Interruptions:
    """Interruptions of one call, over all attempts at it.

    Only data that was not received before counts as progress: a server that fails in every attempt may report progress
    in each. Attempts end `timeout` seconds after the first interruption without new data since.

    Attributes:
        last: error of the last attempt that was interrupted; None before the first.
        waiting_for: what the server last said that the call waits for; empty for nothing.
    """

    def __init__(self, limits: TimeLimits, contact: Contact) -> None:
        self.last: RollserveError | None = None
        self.waiting_for = ""
        self._limits = limits
        self._contact = contact
        self._search = Search(contact.gateways)
        self._backoff = Backoff(limits.timeout)

    def advance(self) -> None:
        """Record that new data has arrived."""
        self._backoff.succeed()

    def pause(self, error: grpc.RpcError, *, has_begun: bool = False, can_repeat: bool = True) -> float | None:
        """Return the seconds to wait before the next attempt, or None if there is none.

        Args:
            error: how the last attempt ended.
            has_begun: whether the call's beginning has arrived.
            can_repeat: whether a call that has begun can be made again.

        Raises:
            UnavailableError: no gateway has the sampler, but one is out of reach and may have it.
        """
        if has_begun and not can_repeat:
            return None
        if self._search.goes_on(error):
            return 0.0
        is_missing = self._search.is_missing(error)
        if is_missing and not self._contact.was_made:
            unavailable = self._search.unavailable()
            if unavailable is not None:
                raise error_from_rpc(unavailable) from None
            return None
        if not (is_missing or has_begun or self._contact.is_lost(error)):
            return None
        if not is_missing and (status_of(error) is not grpc.StatusCode.UNAVAILABLE or reason_of(error) in _FINAL):
            return None
        seconds = self._backoff.next_seconds()
        if seconds is None:
            return None
        self.last = error_from_rpc(error)
        remaining = self._limits.remaining()
        return seconds if remaining is None else min(seconds, remaining)

    def final_error(self, error: grpc.RpcError) -> RollserveError:
        """Return the client's error for an attempt that ended with an error, after which there is none."""
        return self._limits.error_from_rpc(error, self.last, self.waiting_for)

    def silence_error(self) -> DeadlineError:
        """Return the error for an attempt that made no progress for the call's timeout."""
        return self._limits.silence_error(self.last, self.waiting_for)

    def cause_of(self, error: grpc.RpcError) -> RollserveError | None:
        """Return the cause of the client's error: what interrupted a call whose time is over; None for other errors."""
        return self.last if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED else None


class Backoff:
    """Pauses between attempts: exponential up to a limit, with random jitter."""

    _FIRST_SECONDS, _MAX_SECONDS = 0.1, 1.0

    def __init__(self, patience_seconds: float) -> None:
        """Start counting; attempts end after this many seconds without success."""
        self._patience_seconds = patience_seconds
        self.succeed()

    def succeed(self) -> None:
        """Record that an attempt made progress. Time that the client then takes for itself does not count."""
        self._since: float | None = None
        self._seconds = self._FIRST_SECONDS

    def next_seconds(self) -> float | None:
        """Return the seconds to wait before the next attempt, or None if the patience is exhausted."""
        seconds, now = self._seconds * random.uniform(0.5, 1.0), time.monotonic()
        self._since = now if self._since is None else self._since
        left = self._since + self._patience_seconds - now
        self._seconds = min(2 * self._seconds, self._MAX_SECONDS)
        return min(seconds, left) if left > 0 else None
