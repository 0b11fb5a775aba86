"""The transforms of an environment, with the spaces on both of their sides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rollserve_server.envs.transforms.actions import action_step
from rollserve_server.envs.transforms.observations import observation_step
from rollserve_server.envs.transforms.rewards import reward_functions
from rollserve_server.errors import within

if TYPE_CHECKING:
    import numpy as np
    from gymnasium import Space
    from numpy.typing import NDArray

    from rollserve_wire.transforms import Transform

__all__ = ["Transforms"]


class Transforms:
    """Transforms of an environment's rows; they have no state.

    Attributes:
        observation_space: space of the observations that agents see.
        action_space: space of the actions that agents choose.
        changes_rewards: whether any transform is about rewards.
        changes_actions: whether any transform is about actions.
        changes_observations: whether any transform is about observations.
    """

    def __init__(
        self, transforms: Sequence[Transform], observation_space: Space[Any], action_space: Space[Any]
    ) -> None:
        """Fit transforms to an environment.

        Args:
            transforms: the transforms, innermost first.
            observation_space: space of the observations that the environment returns.
            action_space: space of the actions that it takes.

        Raises:
            InvalidValueError: a transform does not fit the space that those before it leave; the field has its
                position.
            NotFoundError: a package is not installed.
        """
        self._rewards = reward_functions(transforms)
        self._actions, self._observations = [], []
        for position, transform in enumerate(transforms):
            with within(f"transforms[{position}]"):
                action = action_step(transform, action_space)
                observation = observation_step(transform, observation_space)
            if action is not None:
                self._actions.append(action)
                action_space = action.space
            if observation is not None:
                self._observations.append(observation)
                observation_space = observation.space
        self._actions.reverse()  # the outermost gets an action first
        self.observation_space, self.action_space = observation_space, action_space
        self.changes_rewards = bool(self._rewards)
        self.changes_actions = bool(self._actions)
        self.changes_observations = bool(self._observations)

    def write_rewards(self, rewards: NDArray[np.float64], out: NDArray[np.float64]) -> None:
        """Write what agents get for the environment's rewards (M,) into another array."""
        for function in self._rewards:
            function(rewards, out)
            rewards = out

    def environment_actions(self, actions: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """Return what the environment gets for the agent's actions, (M, *A) for each leaf."""
        for step in self._actions:
            actions = step.apply(actions)
        return actions

    def seen_observations(self, observations: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """Return what agents see of the environment's observations, (M, *O) for each leaf."""
        for step in self._observations:
            observations = step.apply(observations)
        return observations
