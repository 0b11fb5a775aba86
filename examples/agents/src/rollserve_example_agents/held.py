"""A policy that remembers: it holds each action for some steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve_example_agents.linear import Linear

if TYPE_CHECKING:
    from gymnasium import Space

    from rollserve_server.agents import PythonPolicy

__all__ = ["Held"]


class Held:
    """Acts as `Linear` does, but only every so many steps; between them it does the same again.

    Its parameters are those of `Linear`; its infos are that one's `mean`, and `is_new`, whether the action was chosen
    at this step.
    """

    def __init__(
        self,
        observation_space: Space[Any],
        action_space: Space[Any],
        *,
        num_steps: int = 4,
        noise_scale: float = 0.1,
    ) -> None:
        """Takes how many steps each action is held for, and the standard deviation of the noise.

        Raises:
            ValueError: as of `Linear`, or there is no step.
        """
        if num_steps < 1:
            raise ValueError(f"num_steps: {num_steps} came, at least 1 was expected")
        self._linear = Linear(observation_space, action_space, noise_scale=noise_scale)
        self._num_steps = num_steps
        self._nothing = np.zeros(action_space.shape or (), action_space.dtype)
        self.noise_width = self._linear.noise_width

    def set_parameters(self, parameters: Mapping[str, np.ndarray]) -> None:
        """As of `Linear`."""
        self._linear.set_parameters(parameters)

    def initial_states(self) -> Mapping[str, np.ndarray]:
        """The last action, and how many steps it is still to be held for: at the beginning none."""
        return {"action": self._nothing, "steps_left": np.zeros((), np.int64)}

    def act(
        self, observations: np.ndarray, noise: np.ndarray, states: Mapping[str, np.ndarray]
    ) -> tuple[np.ndarray, Mapping[str, np.ndarray], Mapping[str, np.ndarray]]:
        """Acts in all rows at once, each of which may stand at another step."""
        actions, infos, _ = self._linear.act(observations, noise, {})
        is_new = states["steps_left"] == 0
        actions = np.where(is_new.reshape(-1, *(1 for _ in self._nothing.shape)), actions, states["action"])
        steps_left = np.where(is_new, self._num_steps, states["steps_left"]) - 1
        return actions, {**infos, "is_new": is_new}, {"action": actions, "steps_left": steps_left}


_checked: type[PythonPolicy] = Held
