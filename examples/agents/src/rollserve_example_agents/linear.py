"""A linear policy with noise: enough for CartPole, and for evolution strategies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import Space, spaces

if TYPE_CHECKING:
    from rollserve_server.agents import PythonPolicy

__all__ = ["Linear"]


class Linear:
    """Acts by `weight · observation + bias`, plus noise.

    In a Box of floats that is the action, within the bounds; in a Discrete space the highest of these numbers is that
    of the action. Its parameters are `weight` of shape (outputs, inputs) and `bias` of shape (outputs), its only info
    is `mean` (outputs), the numbers without noise.
    """

    def __init__(self, observation_space: Space[Any], action_space: Space[Any], *, noise_scale: float = 0.1) -> None:
        """Takes the standard deviation of the noise.

        Raises:
            ValueError: the spaces are of other kinds, or the deviation is negative.
        """
        if not isinstance(observation_space, spaces.Box):
            raise ValueError(f"{observation_space} came, a Box of observations was expected")
        if not noise_scale >= 0:
            raise ValueError(f"noise_scale: {noise_scale} came, a number of at least 0 was expected")
        self._noise_scale = noise_scale
        self._action_space: spaces.Discrete[Any] | spaces.Box[Any]
        if isinstance(action_space, spaces.Discrete):
            self._action_space, num_outputs = action_space, int(action_space.n)
        elif isinstance(action_space, spaces.Box) and np.issubdtype(action_space.dtype, np.floating):
            self._action_space, num_outputs = action_space, math.prod(action_space.shape)
        else:
            raise ValueError(f"{action_space} came, a Discrete space or a Box of floats for actions was expected")
        self._shapes = {"weight": (num_outputs, math.prod(observation_space.shape)), "bias": (num_outputs,)}
        self.noise_width = num_outputs

    def set_parameters(self, parameters: Mapping[str, np.ndarray]) -> None:
        """Takes `weight` and `bias`."""
        shapes = {name: value.shape for name, value in parameters.items()}
        if shapes != self._shapes:
            raise ValueError(f"{shapes} came, {self._shapes} was expected")
        self._weight = parameters["weight"].astype(np.float64)
        self._bias = parameters["bias"].astype(np.float64)

    def initial_states(self) -> Mapping[str, np.ndarray]:
        """Remembers nothing."""
        return {}

    def act(
        self, observations: np.ndarray, noise: np.ndarray, states: Mapping[str, np.ndarray]
    ) -> tuple[np.ndarray, Mapping[str, np.ndarray], Mapping[str, np.ndarray]]:
        """Acts in all rows at once."""
        flat = observations.reshape(len(observations), -1).astype(np.float64)
        # A matrix product would have other last bits for other numbers of rows. The server finds that out, and calls
        # with eight rows at a time then; these sums are the same for any number.
        mean = (flat[:, np.newaxis] * self._weight).sum(axis=2) + self._bias
        values = mean + self._noise_scale * noise
        space = self._action_space
        if isinstance(space, spaces.Discrete):
            actions = values.argmax(axis=1) + space.start
        else:
            actions = np.clip(values.reshape(-1, *space.shape), space.low, space.high).astype(space.dtype)
        return actions, {"mean": mean}, {}


_checked: type[PythonPolicy] = Linear  # type checkers compare the two
