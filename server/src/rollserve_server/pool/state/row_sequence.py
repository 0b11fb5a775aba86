"""A row sequence between two calls, as the journal keeps it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from rollserve_server.pool.state.checkpoints import Checkpoint
    from rollserve_server.sampling import RowProgress

__all__ = ["RowSequenceKind", "RowSequenceState", "RowsMoved"]


class RowSequenceKind(NamedTuple):
    """Inputs that determine the episodes of a row sequence, beside its seed, their indices and the acting policies.

    Attributes:
        env_version: version of the environment.
        max_episode_length: number of steps after which an episode is truncated; None for the environment's limit.
        soft_horizon: whether a truncated episode ends without a reset of its environment.
        return_discount: discount of the returns that the account of each call has moments of; None for no moments. It
            changes no episode: rows carry the discounted return of an episode from call to call.
        first_env_seeds: seeds of the environments in the first episode of each row; empty if they derive from the root
            seed, as those of later episodes do.
    """

    env_version: int
    max_episode_length: int | None
    soft_horizon: bool
    return_discount: float | None
    first_env_seeds: tuple[int, ...] = ()


@dataclass(frozen=True)
class RowSequenceState:
    """Positions of a sequence's rows, now and before its last call."""

    seed: int
    kind: RowSequenceKind
    current: Checkpoint
    previous: Checkpoint | None

    def copy(self) -> RowSequenceState:
        """Return an independent copy, for another sequence."""
        previous = self.previous and self.previous.copy()
        return dataclasses.replace(self, current=self.current.copy(), previous=previous)

    def at(self, clock: int) -> Checkpoint | None:
        """Return where the rows stand or stood at that clock, if it is known."""
        return next((each for each in (self.current, self.previous) if each and each.clock == clock), None)


@dataclass(frozen=True)
class RowsMoved:
    """A fragment call that moved the rows of a sequence.

    Attributes:
        number: number of the sequence in the run.
        seed: its root seed.
        kind: what else its episodes are a function of.
        start: where the rows stood, or only the clock if the journal knows the sequence.
        num_row_steps: number of steps that each row has made.
        progress: for each worker, what it reported of its rows.
    """

    number: int
    seed: int
    kind: RowSequenceKind
    start: Checkpoint | int
    num_row_steps: int
    progress: Sequence[Collection[RowProgress]]
