"""Native vector environments whose rows begin anew with the step that ends an episode, not with one of their own.

Rows that take a step to begin anew make fewer steps than the others meanwhile. So they cannot make exactly so many
together, which fragments are made of.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import AutoresetMode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gymnasium.vector import VectorEnv
    from numpy.typing import NDArray

__all__ = ["same_step_spec"]


class _SameStepCartPole(CartPoleVectorEnv):
    """CartPole with the same steps, whose rows draw their next states as soon as they end."""

    state: Any

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.metadata = {**self.metadata, "autoreset_mode": AutoresetMode.SAME_STEP}

    def step(
        self, action: NDArray[np.integer[Any]]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """One step of each row."""
        observations, rewards, terminated, truncated, infos = super().step(action)
        ended = np.flatnonzero(self.prev_done)
        if len(ended):
            infos["final_obs"] = observations
            drawn = self.np_random.uniform(low=self.low, high=self.high, size=(len(self.state), len(ended)))
            self.state[:, ended] = drawn
            self.steps[ended] = 0
            self.prev_done[:] = False
            observations = observations.copy()
            observations[ended] = drawn.T
        return observations, rewards, terminated, truncated, infos


_AT_ONCE: Mapping[str, Callable[..., VectorEnv[Any, Any, Any]]] = {
    "gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv": _SameStepCartPole
}
"""By the entry points of those that take a step to begin anew."""


def same_step_spec(name: str) -> Any:
    """What makes an environment that gymnasium has under a name so that its rows begin anew at once, or None.

    There is none for environments that do so by themselves, nor for those of which it is not known how.
    """
    spec: Any = copy.copy(gymnasium.spec(name))
    entry_point = spec.vector_entry_point
    if not isinstance(entry_point, str) or entry_point not in _AT_ONCE:
        return None
    spec.vector_entry_point = _AT_ONCE[entry_point]
    return spec
