"""Streams: which run, and their end when the sampler begins anew or its server stops."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from rollserve_server.pool.calls.stream import Stream

if TYPE_CHECKING:
    from rollserve_server.admission import Receiver
    from rollserve_server.errors import DomainError
    from rollserve_server.pool.accounts.account import Account
    from rollserve_server.pool.calls.pool_parts import PoolParts
    from rollserve_server.pool.calls.samplings import Samplings
    from rollserve_server.pool.interface.results import Beginning, Delivery, Progress
    from rollserve_server.pool.interface.streams import StreamClient, StreamRequest, StreamRound
    from rollserve_server.pool.interface.updates import AgentUpdated

__all__ = ["Streams"]


class Streams:
    """The streams of a sampler."""

    def __init__(self, parts: PoolParts, samplings: Samplings) -> None:
        self._parts, self._samplings = parts, samplings
        self._open: set[Stream] = set()
        self._refusal: DomainError | None = None

    async def stream(
        self, request: StreamRequest, client: StreamClient, receiver: Receiver
    ) -> AsyncGenerator[AgentUpdated | Beginning | Delivery | StreamRound | Progress | Account, None]:
        """Run a stream; see `Pool.stream`."""
        if self._refusal is not None:
            raise copy.copy(self._refusal)
        self._parts.workers.check_enough()
        stream = Stream(self._parts, self._samplings, request, client, receiver)
        self._open.add(stream)
        try:
            async with contextlib.aclosing(stream.items()) as items:
                async for item in items:
                    yield item
        finally:
            self._open.discard(stream)

    def refuse(self, error: DomainError) -> None:
        """End all streams behind the rounds that they are sending, and every later one, with a copy of the error."""
        self._refusal = error
        for stream in self._open:
            stream.end(copy.copy(error))
