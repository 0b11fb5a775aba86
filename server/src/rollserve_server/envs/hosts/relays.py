"""The relay of a server: where its workers reach the hosts that have opened streams to its gateway."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import NamedTuple

__all__ = ["RelayPlace", "WorkerRelay", "current_relay"]


class RelayPlace(NamedTuple):
    """The place of a relay.

    Attributes:
        host: its address.
        port: its port there.
        secret: what workers prove with that they are the server's.
    """

    host: str
    port: int
    secret: str


class WorkerRelay:
    """The relay that a worker reaches hosts by.

    Attributes:
        place: its place; None where no gateway serves. Another server that takes the worker over has another one.
    """

    def __init__(self, place: RelayPlace | None = None) -> None:
        self.place = place

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Have environments that are made in the block reach hosts by this relay."""
        token = _relay.set(self)
        try:
            yield
        finally:
            _relay.reset(token)


_relay: ContextVar[WorkerRelay | None] = ContextVar("relay", default=None)


def current_relay() -> WorkerRelay:
    """Return the relay of the worker that this thread works for; outside workers, one without a place."""
    return _relay.get() or WorkerRelay()
