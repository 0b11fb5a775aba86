"""Iterations of an on-policy trainer, for asyncio."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Self

from rollserve._calls.base_iterations import BaseIterations
from rollserve.episode_batch import EpisodeBatch

if TYPE_CHECKING:
    from rollserve.async_round_stream import AsyncRoundStream

__all__ = ["AsyncIterations"]


class AsyncIterations(BaseIterations, AsyncIterator[EpisodeBatch]):
    """Async iterator over the batches of a trainer's iterations, which sends the agent's parameters before each.

    `AsyncSampler.iterations` returns one, and describes it. As text it is a line of progress. For loops that are left
    before their end, an `async with` block sends the last parameters, and ends the sampling.

    Attributes:
        num_iterations: number of iterations in all.
        num_steps: number of steps of all batches so far.
        num_episodes: number of episodes that have ended in them.
        observation_moments: moments of their observations; of no step if the agent does not normalize.
        return_moments: moments of their discounted returns; of no step without the option `return_discount`.

    Raises:
        RollserveError: from iteration, if a call fails.
    """

    _stream: AsyncRoundStream[EpisodeBatch] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, *exception: object) -> None:
        if kind is None and self._stream is not None and self._is_learned:
            self._note_version(await self._stream.update_agent(self._update()))
        self.close()

    async def __anext__(self) -> EpisodeBatch:
        if self._stream is None:
            status = await self._parts.status()
            self._space = status.observation_space
            self._note_version(await self._parts.update_agent(self._update()))
            self._stream = self._open(status.num_rows)
            self._began = time.monotonic()
        elif self._is_learned:
            self._note_version(await self._stream.update_agent(self._update()))
        return self._taken(await self._stream.__anext__())

    def close(self) -> None:
        """End the sampling, if the loop was left before its end."""
        if self._stream is not None:
            self._stream.close()
