"""A sampler's environments as a VecEnv of Stable-Baselines3."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv

from rollserve.session_envs import SessionEnvs
from rollserve_wire.errors import InvalidArgumentError
from rollserve_wire.gymnasium_spaces import gymnasium_space, value_leaves

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rollserve.session import Session

__all__ = ["Sb3VecEnv"]

_Result = tuple[Any, "NDArray[np.float32]", "NDArray[np.bool_]", list[dict[str, Any]]]


class Sb3VecEnv(SessionEnvs, VecEnv):  # type: ignore[misc]  # it has no types where it is not installed
    """All rows of a sampler as a VecEnv of Stable-Baselines3, whose environments run on the server.

    `Sampler.sb3_vec_env` returns one. Each `reset` begins a session, see `Sampler.drive`. The infos of a row are
    `terminal_observation`, `TimeLimit.truncated` and, as with a Monitor, `episode`; infos of the environments are in
    recorded batches alone.

    >>> PPO("MlpPolicy", sampler.sb3_vec_env(seed=1)).learn(100_000)  # doctest: +SKIP
    """

    def __init__(self, drive: Callable[..., Session], seed: int | None, options: dict[str, Any]) -> None:
        """Begin a session, which says how many rows there are.

        Args:
            drive: the sampler's method.
            seed: seed of the first reset, unless `seed` sets another one.
            options: other arguments of `drive`.
        """
        self._begin(drive, seed, options)
        self._actions: Any = None
        # Of each row's episode: the sum of its rewards, and its number of steps.
        self._returns, self._lengths = np.zeros((2, self._session.num_rows))
        self._began = time.monotonic()
        self._seeds: list[int | None]
        super().__init__(self._session.num_rows, *map(gymnasium_space, self._own_spaces))
        if seed is not None:
            self.seed(seed)

    def reset(self) -> Any:
        """Begin episodes in all rows, with the seeds that `seed` has set for their environments."""
        seeds = self._seeds
        self._restart(None if None in seeds else seeds[0] if self._session.has_joint_rows else seeds)
        self._reset_seeds()
        self._returns[:] = self._lengths[:] = 0
        return self._observations(self._step.observations)

    def step_async(self, actions: Any) -> None:
        """Take the actions of the next step."""
        self._actions = actions

    def step_wait(self) -> _Result:
        """Step all rows with these actions; rows whose episodes end are reset."""
        step = self._step = self._session.step(value_leaves(self._actions, self._own_spaces[1]))
        dones = step.terminated | step.truncated
        self._returns += step.rewards
        self._lengths += 1
        seconds = round(time.monotonic() - self._began, 6)
        infos: list[dict[str, Any]] = [{"TimeLimit.truncated": False} for _ in range(self.num_envs)]
        for row, observation in self._last_observations():
            infos[row] = {
                "TimeLimit.truncated": bool(step.truncated[row] and not step.terminated[row]),
                "terminal_observation": observation,
                "episode": {"r": round(self._returns[row], 6), "l": int(self._lengths[row]), "t": seconds},
            }
        self._returns[dones] = self._lengths[dones] = 0
        return self._observations(step.observations), step.rewards.astype(np.float32), dones, infos

    def close(self) -> None:
        """End the session."""
        self._session.close()

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy has a session of its own.
        return type(self), (self._drive, self._initial_seed, self._drive_options)

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Return None for `render_mode`; the environments are the server's, and show no other attribute."""
        if attr_name != "render_mode":
            raise self._no_attribute(attr_name)
        return [None for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Raise AttributeError: `update_env` changes the server's environments."""
        raise self._no_attribute(attr_name)

    def env_method(self, method_name: str, *arguments: Any, indices: Any = None, **options: Any) -> list[Any]:
        """Raise AttributeError: the server's environments show no methods."""
        raise self._no_attribute(method_name)

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """Return that rows have what a Monitor adds, and no other wrapper of this process."""
        return [wrapper_class is Monitor for _ in self._get_indices(indices)]

    def set_options(self, options: Any = None) -> None:
        """Raise InvalidArgumentError for options of resets: they are a part of the server's environments."""
        if options:
            raise InvalidArgumentError.of("options", expected="none", got=options, hint="see EnvSpec.reset_options")
