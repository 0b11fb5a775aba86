"""Targets: what a call has to deliver."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["AtLeast", "Exactly", "Fragments", "InAll", "Target"]


@dataclass(frozen=True)
class AtLeast:
    """The fewest episodes, in the order of their indices, that have this many steps in all.

    Attributes:
        num_steps: number of steps.
        counts_agent_steps: whether they are the steps of all agents, instead of the environment's.
    """

    num_steps: int
    counts_agent_steps: bool = False


@dataclass(frozen=True)
class Exactly:
    """A target of equally many episodes on each worker: the first on worker 0, the next on worker 1, and so on.

    Attributes:
        num_episodes_per_worker: number of episodes on each worker.
        num_skipped: number of episodes at the beginning that are not delivered.
    """

    num_episodes_per_worker: int
    num_skipped: int = 0


@dataclass(frozen=True)
class InAll:
    """A number of episodes, in the order of their indices, wherever they run."""

    num_episodes: int


Target = AtLeast | Exactly | InAll
"""Whole episodes."""


@dataclass(frozen=True)
class Fragments:
    """An exact number of steps, the same for each row, whose episodes go on from call to call.

    Attributes:
        num_steps: number of steps of all rows together.
        num_skipped_steps: number of steps at the beginning that are not delivered.
        soft_horizon: whether an episode that reaches the limit of its length ends without a reset of its environment.
        row_step_count: number of steps that each row has made in the sequence of the seed; None for its beginning.
        fraction_of_workers: part of the workers, over 0 and up to 1, that has to make all its steps: then the others
            stop with the steps that they have.
        fraction_of_samples: part of their steps, from 0 to 1, that the others have to make before they stop.
    """

    num_steps: int
    num_skipped_steps: int = 0
    soft_horizon: bool = False
    row_step_count: int | None = None
    fraction_of_workers: float = 1.0
    fraction_of_samples: float = 0.0
