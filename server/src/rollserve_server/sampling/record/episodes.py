"""Recorded episodes, and fragments of episodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rollserve_server.sampling.record.infos import NO_INFOS, InfoKey

if TYPE_CHECKING:
    import numpy as np

    from rollserve_server.sampling.record.columns import Piece
    from rollserve_server.sampling.record.info_columns import InfoColumn
    from rollserve_server.sampling.record.infos import ResetInfos

__all__ = ["Episode"]


@dataclass(eq=False, slots=True)
class Episode:
    """An episode, finished or not, or a fragment: the steps of an episode that are made for one call.

    Attributes:
        index: index of the episode in its sequence.
        env_seed: seed of the environment's reset.
        reset_infos: the environment's infos at the reset.
        env_infos: the environment's infos of the steps; empty until the episode is finished.
        dropped_infos: number of values of infos, of the reset and of the steps, that have no place in a column, by
            name.
        pieces: the steps, in order.
        length: number of steps.
        first_step: number of steps that a fragment's episode has before it; 0 for whole episodes.
        terminated: whether the environment terminated the episode.
        truncated: whether the episode was truncated. Fragments whose episodes go on are neither.
        last_observations: for each leaf of the observation space, the observation after the last step.
        last_states: each of the agent's recurrent states after the last step.
        return_before: sum of the rewards that a fragment's episode has before it; 0 for whole episodes.
        discounted_before: discounted return of a fragment's episode before it; 0 for whole episodes, and without a
            discount.
        row: row that ran it, within its worker.
        total_reward: sum of the raw rewards of its episode so far, added up step by step, in this and in earlier calls.
        began: when its episode began (`time.perf_counter`); 0 before its steps are recorded.
        seconds: time from there to its last step.
        column_bytes: bytes of its steps in column buffers; 0 until it is finished.
        num_bytes: approximate memory of the episode; 0 until it is finished.
    """

    index: int
    env_seed: int
    reset_infos: Mapping[InfoKey, Any]
    env_infos: Mapping[InfoKey, InfoColumn] = field(default_factory=lambda: NO_INFOS)
    dropped_infos: Counter[str] = field(default_factory=Counter)
    pieces: list[Piece] = field(default_factory=list)
    length: int = 0
    first_step: int = 0
    terminated: bool = False
    truncated: bool = False
    last_observations: Sequence[np.ndarray] = ()
    last_states: Sequence[np.ndarray] = ()
    return_before: float = 0.0
    discounted_before: float = 0.0
    row: int = 0
    total_reward: float = 0.0
    began: float = 0.0
    seconds: float = 0.0
    column_bytes: int = 0
    num_bytes: int = 0

    @classmethod
    def begin(
        cls,
        index: int,
        env_seed: int,
        reset: ResetInfos,
        first_step: int = 0,
        total_reward: float = 0.0,
        began: float = 0.0,
        discounted_before: float = 0.0,
    ) -> Episode:
        """Return an episode or a fragment without steps. A fragment has the sums and time of the one before it."""
        dropped = Counter(reset.dropped) if reset.dropped else Counter()  # many times as fast as from an empty mapping
        return cls(
            index,
            env_seed,
            reset.values,
            dropped_infos=dropped,
            first_step=first_step,
            return_before=total_reward,
            discounted_before=discounted_before,
            total_reward=total_reward,
            began=began,
        )

    @property
    def num_agent_steps(self) -> int:
        """Number of the agent's steps, the only one's."""
        return self.length

    @property
    def ended(self) -> bool:
        """Whether the episode has ended, with the last of these steps."""
        return self.terminated or self.truncated
