"""Where in which sequence of episodes the next call begins, and what workers still hold of it."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from rollserve_server.pool.call import OpenStream
from rollserve_server.pool.plan import Ledger
from rollserve_server.sampling import Stream, Worker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollserve_server.pool.backend import WorkerHandle
    from rollserve_server.pool.plan import Placement

__all__ = ["Streams"]


class Streams:
    """Keeps one stream open from call to call. What another call cannot use of it is dropped, and counted.

    Attributes:
        own_seed: the root seed of calls that name none.
        next_index: where the next of them begins: no episode of that sequence is delivered twice.
    """

    def __init__(self, own_seed: int) -> None:
        self.own_seed = own_seed
        self.next_index = 0
        self._open: OpenStream | None = None
        self._num_opened = 0
        self._num_dropped_steps = 0
        self._dropping: set[asyncio.Task[None]] = set()

    def open(
        self,
        root_seed: int,
        first_index: int,
        policy_version: int,
        env_version: int,
        placement: Placement,
        workers: Sequence[WorkerHandle],
    ) -> OpenStream:
        """The stream that is open, if it is the wanted one and stands at that index, or a new one."""
        kept = self._open
        if kept is not None:
            wanted = Stream(kept.stream.stream_id, root_seed, policy_version, env_version)
            if (kept.stream, kept.placement, kept.ledger.next_index) == (wanted, placement, first_index):
                return kept
            self.drop(workers)
        self._num_opened += 1
        stream = Stream(self._num_opened, root_seed, policy_version, env_version)
        self._open = OpenStream(stream, placement, Ledger(first_index), [deque() for _ in workers])
        return self._open

    def settle(self, stream: OpenStream) -> None:
        """Takes in that a call has ended: what it claimed, and may have delivered, does not come again."""
        if stream.stream.root_seed == self.own_seed:
            self.next_index = max(self.next_index, stream.ledger.next_index)

    def drop(self, workers: Sequence[WorkerHandle]) -> None:
        """Gives up the open stream: its workers forget it."""
        stream, self._open = self._open, None
        if stream is None:
            return
        self._num_dropped_steps += stream.num_held_steps
        task = asyncio.create_task(self._finish_dropping(stream, list(workers)))
        self._dropping.add(task)
        task.add_done_callback(self._dropping.discard)

    def take_num_dropped_steps(self) -> int:
        """How many steps were dropped since this was last asked."""
        num_steps, self._num_dropped_steps = self._num_dropped_steps, 0
        return num_steps

    async def _finish_dropping(self, stream: OpenStream, workers: Sequence[WorkerHandle]) -> None:
        """Has the workers forget the stream, and counts what they had still been doing for it."""
        forgetting = [worker.call(Worker.close_stream, stream.stream.stream_id) for worker in workers]
        await asyncio.gather(*forgetting, return_exceptions=True)
        coming = [in_flight.report for queue in stream.in_flight for in_flight in queue]
        for report in await asyncio.gather(*coming, return_exceptions=True):
            if not isinstance(report, BaseException):
                self._num_dropped_steps += report.num_simulated_steps
