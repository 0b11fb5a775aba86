"""The base of all agents, and the columns that agents read and write."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

__all__ = [
    "ACTION_MASK",
    "FLOAT32",
    "FLOAT64",
    "LOG_PROB",
    "VALUE",
    "ActionMask",
    "Agent",
    "Decision",
    "InfoSpec",
    "LeafMask",
    "NoiseKind",
    "PopulationAgent",
    "StateSpec",
]

FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)


class InfoSpec(NamedTuple):
    """An info that an agent returns with each action.

    Attributes:
        name: name of the info.
        dtype: dtype of the column.
        shape: shape of one row.
    """

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]


class StateSpec(NamedTuple):
    """An array of an agent's recurrent state.

    Attributes:
        name: name of the array.
        initial: value before an episode's first action, (*S); it determines dtype and shape.
    """

    name: str
    initial: np.ndarray


@dataclass(frozen=True, eq=False)
class LeafMask:
    """The mask of a Discrete, MultiDiscrete or MultiBinary leaf: which values of each of its elements are legal.

    Attributes:
        name, path: name and path of the leaf in the action space; empty if the space is the leaf.
        position: position of the leaf among the leaves of the action space.
        counts: number of values of each element.
        start: lowest value of each element, (elements,).
        columns: columns of the leaf in the mask of the action.
        parts: columns of each element's values, counted from the leaf's first one.
        is_binary: whether environments show the mask with a number for each element, 0 or 1 for its only legal value or
            2 for both, instead of a zero or one for each value.
    """

    name: str
    path: tuple[str | int, ...]
    position: int
    counts: tuple[int, ...]
    start: np.ndarray
    columns: slice
    parts: tuple[slice, ...]
    is_binary: bool

    @functools.cached_property
    def spec(self) -> InfoSpec:
        """Info that records the mask."""
        name = f"{ACTION_MASK}/{self.name}" if self.name else ACTION_MASK
        return InfoSpec(name, np.dtype(np.bool_), (sum(self.counts),))

    @functools.cached_property
    def is_even(self) -> bool:
        """Whether all elements have as many values."""
        return self.counts.count(self.counts[0]) == len(self.counts)

    @functools.cached_property
    def num_shown(self) -> int:
        """Number of numbers that environments show the mask with."""
        return len(self.counts) if self.is_binary else sum(self.counts)


class ActionMask(NamedTuple):
    """The action mask of an agent: which values of each element of an action are legal.

    Attributes:
        info: path of the info that has the mask; empty if observations have it.
        sources: positions among the leaves of the observation space, one for each of `leaves`; empty if an info has the
            mask.
        leaves: masks of the leaves of the action space that can have one, in the order of their columns.
        hidden: positions of the leaves of the observation space that are no observations: `sources`, and those beside
            them in the mask, for leaves of the action space that have none.
    """

    info: tuple[str, ...]
    sources: tuple[int, ...]
    leaves: tuple[LeafMask, ...]
    hidden: frozenset[int] = frozenset()

    @property
    def size(self) -> int:
        """S, the number of values of all elements."""
        return sum(sum(leaf.counts) for leaf in self.leaves)

    @property
    def infos(self) -> tuple[InfoSpec, ...]:
        """Infos that record the mask."""
        return tuple(leaf.spec for leaf in self.leaves)

    def recorded(self, legal: np.ndarray) -> dict[str, np.ndarray]:
        """Return the infos that record which values are legal, (M, S) bool, as views of it."""
        return {leaf.spec.name: legal[:, leaf.columns] for leaf in self.leaves}

    def without_hidden(self, values: Sequence[Any]) -> list[Any]:
        """Return values, one for each leaf of the observation space, without the leaves that have the mask."""
        return [value for position, value in enumerate(values) if position not in self.hidden]


ACTION_MASK = "action_mask"
"""Name of the mask among the infos of a batch, among a model's inputs, and of the field of agents."""

LOG_PROB = InfoSpec("log_prob", FLOAT32, ())
VALUE = InfoSpec("value", FLOAT32, ())

Decision = tuple[Sequence[np.ndarray], Mapping[str, np.ndarray]]
"""An array (M, *A) for each leaf of the action space, and an array (M, *I) for each info, by name."""


class NoiseKind(NamedTuple):
    """A way to draw noise: agents of one kind draw the same numbers from the same generator.

    Attributes:
        distribution: distribution of all numbers.
        width: numbers per action.
    """

    distribution: Literal["uniform", "normal", "logistic"]
    width: int


class Agent(ABC):
    """An agent that acts in M rows of environments at once.

    All randomness comes from the caller, as noise drawn for each row from its episode's own stream; so does the
    recurrent state. A row's action and next states depend on that row's observation, noise and states alone, to the
    last bit: not on the other rows, nor on the row's position. In an agent built for rows that always act together,
    they depend on all rows.

    Attributes:
        noise_width: K, random numbers per action.
        noise_kind: how noise is drawn; None if other agents may draw other numbers.
        factors: exploration factors, or None. With factors, the first noise number is not drawn: all actions of episode
            i use `factors[i % len(factors)]`.
        infos: infos that `act` returns.
        states: arrays of the recurrent state; empty unless the agent is recurrent.
        mask: action mask that the agent gets; None without one.
        reward_state: position of the state that the caller sets to the reward of each step; None without one.
    """

    noise_width: int
    noise_kind: NoiseKind | None = None
    factors: np.ndarray | None = None
    infos: tuple[InfoSpec, ...] = ()
    states: tuple[StateSpec, ...] = ()
    mask: ActionMask | None = None
    reward_state: int | None = None

    @abstractmethod
    def draw_noise(self, generator: np.random.Generator, noise: np.ndarray) -> None:
        """Fill `noise`, (steps, K) float64, for the next steps of one episode."""

    @abstractmethod
    def act(self, observations: Sequence[np.ndarray], noise: np.ndarray, states: Sequence[np.ndarray] = ()) -> Decision:
        """Choose an action for each row.

        Args:
            observations: an array (M, *O) for each leaf of the observation space; then, with a mask, the legal actions
                (M, S) bool, at least one for each element of each row's action.
            noise: (M, K) float64.
            states: an array (M, *S) for each of the agent's states, as the previous action left it; overwritten with
                the state after this action.

        Returns:
            Actions and infos. The next call may reuse the arrays.

        Raises:
            AgentFailedError: the agent fails.
        """

    def failures(self) -> Mapping[int, str]:
        """Return what is wrong with the results of the last `act`, by row; usually empty."""
        return {}


class PopulationAgent(Agent):
    """An agent that acts in each row as one member of a population.

    Attributes:
        side_by_side: whether rows can act as different members at the same time. If not, `assign` may change the member
            only while no row runs an episode.
    """

    side_by_side: bool

    @abstractmethod
    def assign(self, row: int, member: int) -> None:
        """Let a row act as a member from now on."""
