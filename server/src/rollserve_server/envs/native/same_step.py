"""Native vector environments with same-step reset, also of those that reset in the next step by default.

With gymnasium's next-step reset, rows that reset make fewer steps than the others. So the rows cannot all make exactly
the same number of steps, as fragments require.
"""

from __future__ import annotations

import copy
import inspect
from typing import TYPE_CHECKING, Any

import gymnasium
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import AutoresetMode, VectorWrapper

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np
    from gymnasium.vector import VectorEnv
    from numpy.typing import NDArray

__all__ = ["MODE_ARGUMENT", "WithFinalInfos", "same_step_spec", "takes_mode"]

MODE_ARGUMENT = "autoreset_mode"
"""Argument of native vector environments that can reset rows in more than one way, as ALE's."""


class _SameStepCartPole(CartPoleVectorEnv):
    """CartPole with the same dynamics, whose rows draw their next initial states as soon as they end."""

    state: Any

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.metadata = {**self.metadata, "autoreset_mode": AutoresetMode.SAME_STEP}

    def step(
        self, action: NDArray[np.integer[Any]]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Step all rows, and reset those whose episodes end."""
        observations, rewards, terminated, truncated, infos = super().step(action)
        (ended,) = self.prev_done.nonzero()
        if len(ended):
            infos["final_obs"] = observations
            drawn = self.np_random.uniform(low=self.low, high=self.high, size=(len(self.state), len(ended)))
            self.state[:, ended] = drawn
            self.steps[ended] = 0
            self.prev_done[:] = False
            observations = observations.copy()
            observations[ended] = drawn.T
        return observations, rewards, terminated, truncated, infos


# Before 1.4, gymnasium's VectorWrapper was not generic.
if TYPE_CHECKING:
    _VectorWrapper = VectorWrapper[Any, Any, Any, Any, Any]
else:
    _VectorWrapper = VectorWrapper


class WithFinalInfos(_VectorWrapper):
    """A vector environment with same-step reset that says which infos belong to which episode.

    Where an episode ends, gymnasium's convention has the infos of the next one, and those of the last step under
    `final_info`. ALE leaves `final_info` out: the last step of an episode then has no infos.
    """

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all rows; add an empty `final_info` where an episode has ended without one."""
        *results, infos = self.env.step(actions)
        if "final_obs" in infos and "final_info" not in infos:
            infos = {**infos, "final_info": {}}
        return *results, infos


_SAME_STEP: Mapping[str, Callable[..., VectorEnv[Any, Any, Any]]] = {
    "gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv": _SameStepCartPole
}
"""Vector environments with same-step reset, by the entry points of those with next-step reset."""


def same_step_spec(name: str) -> Any:
    """Return the gymnasium spec of a variant with same-step reset.

    Args:
        name: registered id of an environment.

    Returns:
        The spec, or None if the environment itself has same-step reset or this module has no variant of it.
    """
    spec: Any = copy.copy(gymnasium.spec(name))
    entry_point = spec.vector_entry_point
    if not isinstance(entry_point, str) or entry_point not in _SAME_STEP:
        return None
    spec.vector_entry_point = _SAME_STEP[entry_point]
    return spec


def takes_mode(name: str) -> bool:
    """Whether the native vector environment of a registered id has an argument for its autoreset mode."""
    entry_point: Any = gymnasium.spec(name).vector_entry_point
    creator = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    return MODE_ARGUMENT in inspect.signature(creator).parameters
