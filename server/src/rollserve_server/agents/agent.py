"""Interfaces of agents, and the names and columns of what they read and write."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    from rollserve_server.envs import Leaf

__all__ = [
    "ACTION_MASK",
    "FINITE",
    "FLOAT32",
    "FLOAT64",
    "LOG_PROB",
    "NEXT_STATE",
    "OBSERVATION",
    "PREVIOUS_ACTION",
    "PREVIOUS_REWARD",
    "STATE",
    "VALUE",
    "ActionMask",
    "Agent",
    "Decision",
    "InfoSpec",
    "LeafMask",
    "NoiseKind",
    "PopulationAgent",
    "PythonPolicy",
    "StateSpec",
    "action_states",
    "first_bad_elements",
    "is_previous",
    "leaf_role",
    "reward_state",
]

FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)

FINITE = "a finite number"
"""Expected form of the numbers that networks and policies return, for errors."""


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


ACTION_MASK = "action_mask"
"""Name of the mask among the infos of a batch, among a model's inputs, and of the field of agents."""

LOG_PROB = InfoSpec("log_prob", FLOAT32, ())

VALUE = InfoSpec("value", FLOAT32, ())

OBSERVATION = "observation"
"""Role of an observation, or of each of its leaves, as input of a model; see `leaf_role`."""

STATE = "state/"
"""Prefix of a recurrent state's name, as input of a model and among the infos of a batch."""

NEXT_STATE = "next_state/"
"""Prefix of a recurrent state's name, as output of a model."""


def leaf_role(whole: str, leaf: Leaf | LeafMask) -> str:
    """Return the role of a leaf: `whole` if it is its space's only leaf, else `whole/NAME`.

    Args:
        whole: role of the whole value, such as `observation`.
        leaf: leaf of its space, or the mask of one.
    """
    return f"{whole}/{leaf.name}" if leaf.name else whole


PREVIOUS_ACTION = "previous_action"
"""Name of the state, or of the states of all leaves, that has the action before; see `leaf_role`."""

PREVIOUS_REWARD = "previous_reward"
"""Name of the state that has the reward before, as the caller gets it from the environment."""


def action_states(leaves: Iterable[Leaf]) -> list[StateSpec]:
    """Return a state for each leaf of an action, zeros at an episode's start."""
    return [StateSpec(leaf_role(PREVIOUS_ACTION, leaf), np.zeros(leaf.shape, leaf.dtype)) for leaf in leaves]


def reward_state() -> StateSpec:
    """Return the state that has the reward before, 0 at an episode's start."""
    return StateSpec(PREVIOUS_REWARD, np.zeros(()))


def is_previous(role: str) -> bool:
    """Whether an input of this role has the action before, a leaf of it, or the reward before."""
    return role in (PREVIOUS_ACTION, PREVIOUS_REWARD) or role.startswith(f"{PREVIOUS_ACTION}/")


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
        return InfoSpec(leaf_role(ACTION_MASK, self), np.dtype(np.bool_), (sum(self.counts),))

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


def first_bad_elements(values: np.ndarray, is_good: np.ndarray) -> Iterator[tuple[int, object]]:
    """Yield each row of `values` (M, size) with an element that is not good, and the first such element."""
    bad = ~is_good
    for row in np.flatnonzero(bad.any(axis=1)).tolist():
        yield row, values[row][bad[row]][0]


class PythonPolicy(Protocol):
    """A policy, made by `factory(observation_space, action_space, **kwargs)` with gymnasium's spaces.

    It acts in M rows of environments at once; M differs from call to call. A row's action, infos and next states depend
    on that row's observation, noise and states alone: on no other row, on no random numbers beside the noise, and on
    nothing that the policy remembers from an earlier call beside the states. So a policy needs no reset, and episodes
    can be repeated anywhere.

    An optional attribute `noise_width` is K, the number of random numbers per action; without it, K is 0. An optional
    attribute `agent_inputs` is a list of names of what the policy asks for beside the observation: `action_mask`,
    `previous_action` and `previous_reward`. `act` then gets a mapping with them as a fourth argument.
    """

    def set_parameters(self, parameters: Mapping[str, np.ndarray]) -> None:
        """Set the parameters; called once, before all else, with an empty mapping if there are none.

        Args:
            parameters: all parameters by name, also parameters that an update left unchanged. The arrays are read-only.

        Raises:
            Exception: the parameters are wrong. The client gets the text, and the agent is refused.
        """
        ...

    def initial_states(self) -> Mapping[str, np.ndarray]:
        """Return a row's recurrent state before an episode's first action: arrays (*S) by name; often empty."""
        ...

    # The types of observations and actions depend on the spaces, which a type checker cannot know.
    def act(
        self, observations: Any, noise: np.ndarray, states: Mapping[str, np.ndarray]
    ) -> tuple[Any, Mapping[str, np.ndarray], Mapping[str, np.ndarray]]:
        """Choose an action for each row.

        Args:
            observations: (M, *O); for a Dict or Tuple space, a mapping with such an array for each leaf, by the leaf's
                name, such as `camera` or `pose/0`.
            noise: (M, K) float64, standard normal; all zeros in deterministic calls.
            states: arrays (M, *S) by name, as each row's last action left them.

        Returns:
            Actions, (M, *A) or a mapping by leaf name, of the space's dtype or one that converts to it within its kind.
            Infos by name, (M, ...), always of the same names, dtypes and shapes. States after these actions.

        Raises:
            Exception: the policy fails. The call for samples ends, and the client gets the text.
        """
        ...
