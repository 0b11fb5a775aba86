"""A policy with a recurrent state: it holds each action for some steps."""

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
    """A policy that chooses an action as `Linear` does, and repeats it for some steps.

    Parameters are `weight` and `bias`, as in `Linear`. The infos are `mean`, as in `Linear`, and `is_new`: whether the
    action was chosen in this step.

    Attributes:
        noise_width: number of standard normal numbers that each action needs.
    """

    def __init__(
        self,
        observation_space: Space[Any],
        action_space: Space[Any],
        *,
        num_steps: int = 4,
        noise_scale: float = 0.1,
    ) -> None:
        """Prepare the policy for these spaces. The keyword arguments come from `rollserve.PythonAgent`.

        Args:
            observation_space: a Box.
            action_space: a Discrete space or a Box of floats.
            num_steps: number of steps that each action is held for.
            noise_scale: standard deviation of the noise.

        Raises:
            ValueError: another kind of space, a negative standard deviation, or less than one step.
        """
        if num_steps < 1:
            raise ValueError(f"num_steps: expected at least 1, got {num_steps}")
        self._linear = Linear(observation_space, action_space, noise_scale=noise_scale)
        self._num_steps = num_steps
        self._no_action = np.zeros(action_space.shape or (), action_space.dtype)
        self.noise_width = self._linear.noise_width

    def set_parameters(self, parameters: Mapping[str, np.ndarray]) -> None:
        """Set `weight` and `bias`; raises as `Linear.set_parameters`."""
        self._linear.set_parameters(parameters)

    def initial_states(self) -> Mapping[str, np.ndarray]:
        """Return a row's state before the first step of an episode: no action is held."""
        return {"action": self._no_action, "steps_left": np.zeros((), np.int64)}

    def act(
        self, observations: np.ndarray, noise: np.ndarray, states: Mapping[str, np.ndarray]
    ) -> tuple[np.ndarray, Mapping[str, np.ndarray], Mapping[str, np.ndarray]]:
        """Return the actions of M rows, their infos and their next states. Each row may be at another step.

        Args:
            observations: (M, *O).
            noise: (M, noise_width) standard normal numbers; zeros in deterministic calls.
            states: by name (M, *S), as the previous step of each row has left them.
        """
        actions, infos, _ = self._linear.act(observations, noise, {})
        is_new = states["steps_left"] == 0
        is_new_action = is_new.reshape(-1, *(1 for _ in self._no_action.shape))  # broadcasts over the action's axes
        actions = np.where(is_new_action, actions, states["action"])
        steps_left = np.where(is_new, self._num_steps, states["steps_left"]) - 1
        return actions, {**infos, "is_new": is_new}, {"action": actions, "steps_left": steps_left}


_checked: type[PythonPolicy] = Held  # type checkers compare the class with the protocol
