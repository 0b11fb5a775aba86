"""Observations, and what else an agent gets, flattened into the input of a network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from rollserve_server.agents.agent import StateSpec
from rollserve_server.agents.previous import PREVIOUS_ACTION, reward_state
from rollserve_server.agents.specs.shapes import consecutive
from rollserve_server.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollserve_server.agents.agent import ActionMask
    from rollserve_server.agents.specs.inputs import AgentInputs
    from rollserve_server.envs import Leaf

__all__ = ["NetworkInput"]


class _Flattener:
    """Flattens observations or actions of M rows, as `gymnasium.spaces.flatten` does for one.

    Attributes:
        size: size of a flat value.
    """

    def __init__(self, leaves: Sequence[Leaf], mask: ActionMask | None = None) -> None:
        """Flatten the leaves of a space, except those that have the mask."""
        positions = list(range(len(leaves)))
        if mask is not None:
            positions = mask.without_hidden(positions)
        flat_spaces = [leaves[position].space for position in positions]
        for position in positions:
            if isinstance(leaves[position].space, spaces.Text):
                name = f"texts at {leaves[position].name!r}" if leaves[position].name else "texts"
                raise InvalidValueError.of("", expected="observations of numbers", got=name)
        sizes = [spaces.flatdim(space) for space in flat_spaces]
        self.size = sum(sizes)
        # For each leaf: its space, its position among the observations, and its columns.
        self._parts = list(zip(flat_spaces, positions, consecutive(sizes), strict=True))

    def __call__(self, observations: Sequence[np.ndarray], out: np.ndarray) -> None:
        """Write the flat values to `out`.

        Args:
            observations: an array (M, *shape) for each leaf; others may follow.
            out: (M, size), floats.
        """
        for space, position, part in self._parts:
            _flatten_leaf(space, observations[position], out[:, part])


class NetworkInput:
    """The input of a network: the flat observation without the mask, then the action and the reward before, if any.

    Attributes:
        size: size of the input.
        num_observed: size of the flat observation, with which the input begins.
        content: what it holds, for errors.
        states: states that hold the action and the reward before.
    """

    def __init__(
        self,
        observation_leaves: Sequence[Leaf],
        action_leaves: Sequence[Leaf],
        mask: ActionMask | None,
        inputs: AgentInputs,
    ) -> None:
        self._observation = _Flattener(observation_leaves, mask)
        self._action = _Flattener(action_leaves) if inputs.previous_action else None
        content = ["the observation space"]
        if mask is not None and mask.sources:
            content[0] += " without the action mask"
        elif any(leaf.name == "action_mask" for leaf in observation_leaves):
            content[0] += " with its leaf action_mask, which ActionMask(observation='action_mask') leaves out"
        states = []
        if self._action is not None:
            content.append("the previous action")
            states.append(StateSpec(PREVIOUS_ACTION, np.zeros(self._action.size, np.float32)))
        if inputs.previous_reward:
            content.append("the previous reward")
            states.append(reward_state())
        self.content = ", ".join(content)
        self.states = tuple(states)
        # Each state after the other, behind the observation.
        self.num_observed = self._observation.size
        sizes = [self.num_observed, *(state.initial.size for state in states)]
        self.size, (_, *self._parts) = sum(sizes), consecutive(sizes)

    def observe(self, observations: Sequence[np.ndarray], out: np.ndarray) -> None:
        """Write flat observations.

        Args:
            observations: as `Agent.act` takes them.
            out: (M, num_observed), floats.
        """
        self._observation(observations, out)

    def recall(self, states: Sequence[np.ndarray], out: np.ndarray) -> None:
        """Write the action and the reward before, behind the observation.

        Args:
            states: an array for each of `states`.
            out: (M, size) float32.
        """
        for part, state in zip(self._parts, states, strict=True):
            out[:, part] = state.reshape(len(state), -1)

    def keep(self, actions: Sequence[np.ndarray], states: Sequence[np.ndarray]) -> None:
        """Store actions, an array (M, *A) for each leaf, in the states."""
        if self._action is not None:
            self._action(actions, states[0])


def _flatten_leaf(space: Any, column: np.ndarray, out: np.ndarray) -> None:
    match space:
        case spaces.Discrete():
            _one_hot(column - space.start, out)
        case spaces.MultiDiscrete():
            begin = 0
            positions = (column - space.start).reshape(len(column), -1)
            for element, n in enumerate(space.nvec.ravel()):
                _one_hot(positions[:, element], out[:, begin : begin + n])
                begin += n
        case _:
            out[...] = column.reshape(len(column), -1)


def _one_hot(positions: np.ndarray, out: np.ndarray) -> None:
    out[...] = 0
    out[np.arange(len(positions)), positions] = 1
