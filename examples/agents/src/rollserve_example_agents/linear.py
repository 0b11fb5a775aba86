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
    """A policy that computes `weight · observation + bias`, plus noise.

    For a Box of floats, the result is the action, clipped to the bounds. For a Discrete space, the action is the
    position of the largest element.

    The parameters are `weight` (num_outputs, num_inputs) and `bias` (num_outputs,). The info `mean` (num_outputs,) is
    the result without noise.

    Attributes:
        noise_width: number of standard normal numbers that each action needs.
    """

    def __init__(self, observation_space: Space[Any], action_space: Space[Any], *, noise_scale: float = 0.1) -> None:
        """Prepare the policy for these spaces. The keyword arguments come from `rollserve.PythonAgent`.

        Args:
            observation_space: a Box.
            action_space: a Discrete space or a Box of floats.
            noise_scale: standard deviation of the noise.

        Raises:
            ValueError: another kind of space, or a negative standard deviation. The client gets the message.
        """
        if not isinstance(observation_space, spaces.Box):
            raise ValueError(f"observation_space: expected a Box, got {observation_space}")
        if not noise_scale >= 0:
            raise ValueError(f"noise_scale: expected a number of at least 0, got {noise_scale}")
        self._noise_scale = noise_scale
        self._action_space: spaces.Discrete[Any] | spaces.Box[Any]
        if isinstance(action_space, spaces.Discrete):
            self._action_space, num_outputs = action_space, int(action_space.n)
        elif isinstance(action_space, spaces.Box) and np.issubdtype(action_space.dtype, np.floating):
            self._action_space, num_outputs = action_space, math.prod(action_space.shape)
        else:
            raise ValueError(f"action_space: expected a Discrete space or a Box of floats, got {action_space}")
        self._shapes = {"weight": (num_outputs, math.prod(observation_space.shape)), "bias": (num_outputs,)}
        self.noise_width = num_outputs

    def set_parameters(self, parameters: Mapping[str, np.ndarray]) -> None:
        """Set `weight` and `bias`. The server calls this once, before all other methods.

        Raises:
            ValueError: other names or shapes. The client gets the message, and the update changes nothing.
        """
        shapes = {name: value.shape for name, value in parameters.items()}
        if shapes != self._shapes:
            raise ValueError(f"parameters: expected the shapes {self._shapes}, got {shapes}")
        self._weight = parameters["weight"].astype(np.float64)
        self._bias = parameters["bias"].astype(np.float64)

    def initial_states(self) -> Mapping[str, np.ndarray]:
        """Return no states: this policy remembers nothing between steps."""
        return {}

    def act(
        self, observations: np.ndarray, noise: np.ndarray, states: Mapping[str, np.ndarray]
    ) -> tuple[np.ndarray, Mapping[str, np.ndarray], Mapping[str, np.ndarray]]:
        """Return the actions of M rows, their infos and their states.

        Args:
            observations: (M, *O).
            noise: (M, noise_width) standard normal numbers; zeros in deterministic calls.
            states: none.
        """
        flat = observations.reshape(len(observations), -1).astype(np.float64)
        # Sums instead of a matrix product, whose last bits depend on the number of rows. The server would notice that,
        # and always pass eight rows.
        mean = (flat[:, np.newaxis] * self._weight).sum(axis=2) + self._bias
        values = mean + self._noise_scale * noise
        space = self._action_space
        if isinstance(space, spaces.Discrete):
            actions = values.argmax(axis=1) + space.start
        else:
            actions = np.clip(values.reshape(-1, *space.shape), space.low, space.high).astype(space.dtype)
        return actions, {"mean": mean}, {}


_checked: type[PythonPolicy] = Linear  # type checkers compare the class with the protocol
