# Generated from async_iterations.py by `make blocking`.
"""Iterations of an on-policy trainer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Self

from rollserve._calls.base_iterations import BaseIterations
from rollserve.episode_batch import EpisodeBatch

if TYPE_CHECKING:
    from rollserve.round_stream import RoundStream

__all__ = ["Iterations"]


class Iterations(BaseIterations, Iterator[EpisodeBatch]):
    """Iterator over the batches of a trainer's iterations, which sends the agent's parameters before each.

    `Sampler.iterations` returns one, and describes it. As text it is a line of progress. For loops that are left
    before their end, an `with` block sends the last parameters, and ends the sampling.

    Attributes:
        num_iterations: number of iterations in all.
        num_steps: number of steps of all batches so far.
        num_episodes: number of episodes that have ended in them.
        observation_moments: moments of their observations; of no step if the agent does not normalize.
        return_moments: moments of their discounted returns; of no step without the option `return_discount`.

    Raises:
        RollserveError: from iteration, if a call fails.
    """

    _stream: RoundStream[EpisodeBatch] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        if kind is None and self._stream is not None and self._is_learned:
            self._note_version(self._stream.update_agent(self._update()))
        self.close()

    def __next__(self) -> EpisodeBatch:
        if self._stream is None:
            status = self._parts.status()
            self._space = status.observation_space
            self._note_version(self._parts.update_agent(self._update()))
            self._stream = self._open(status.num_rows)
            self._began = time.monotonic()
        elif self._is_learned:
            self._note_version(self._stream.update_agent(self._update()))
        return self._taken(self._stream.__next__())

    def close(self) -> None:
        """End the sampling, if the loop was left before its end."""
        if self._stream is not None:
            self._stream.close()
