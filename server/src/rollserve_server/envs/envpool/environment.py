"""EnvPool's environments as vector environments whose rows begin anew with the step that ends an episode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.envs.registration import EnvSpec as GymnasiumSpec
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from rollserve import Reason
from rollserve_server.envs.envpool.arguments import check_arguments, check_values
from rollserve_server.envs.making import refusing
from rollserve_server.errors import InvalidValueError, NotFoundError

if TYPE_CHECKING:
    from rollserve import EnvSpec

__all__ = ["EnvPoolEnv", "make_envpool"]

_NO_LIMIT = 2**31 - 1
"""What EnvPool has as the step limit of an environment that has none."""

_POOLS_OWN_INFOS = ("elapsed_step", "env_id", "players")
_REPEATED_INFOS = {"reward": "reward_clip", "terminated": "episodic_life"}
"""Infos that say again what the step says, unless the environment has this option and it is set."""


def make_envpool(spec: EnvSpec, num_rows: int, max_episode_length: int | None) -> EnvPoolEnv:
    """An environment of EnvPool's. The caller has checked that the spec is allowed.

    Args:
        spec: how to make it; its id is one of EnvPool's.
        num_rows: how many rows it is to have.
        max_episode_length: how many steps an episode may have; None for what the environment allows.

    Raises:
        NotFoundError: EnvPool is not installed, has no such id, or lacks a package that the environment needs.
        InvalidValueError: EnvPool refuses an argument, or it is not the client's to set; or the spec has something that
            EnvPool's environments do not take.
    """
    registry = _registry()
    if spec.id not in registry.specs:
        text = f"{spec.id!r} came, an id of EnvPool's was expected, such as 'Pong-v5'"
        raise NotFoundError(text, reason=Reason.ENV_NOT_FOUND, field="id")
    _check_parts(spec)
    defaults = refusing(spec.id, lambda: registry.make_spec(spec.id)).config._asdict()
    if defaults["max_num_players"] != 1:
        text = f"{spec.id!r} came, which has several players: one with a single player was expected"
        raise InvalidValueError(text, field="id")
    arguments = check_arguments(spec.kwargs, defaults)
    known = arguments.pop("max_episode_steps", defaults["max_episode_steps"])
    check_values(spec.id, arguments)
    limits = [limit for limit in (known, max_episode_length) if limit is not None and limit < _NO_LIMIT]
    env: EnvPoolEnv = refusing(spec.id, lambda: EnvPoolEnv(spec.id, arguments, num_rows, min(limits, default=None)))
    return env


class EnvPoolEnv(VectorEnv[Any, Any, Any]):
    """M rows of an environment of EnvPool's.

    Each reset makes a pool, because EnvPool takes seeds only then. Whether an episode is over because of the step limit
    is decided here: EnvPool itself calls no episode terminated that ends with its limit.
    """

    def __init__(self, env_id: str, arguments: Mapping[str, Any], num_rows: int, limit: int | None) -> None:
        """Makes a row, to see what it is; the first reset makes all.

        Args:
            env_id: an id of EnvPool's.
            arguments: of the environment's own, and checked.
            num_rows: M.
            limit: after how many steps an episode is truncated; None for never.

        Raises:
            Exception: EnvPool refuses an argument.
        """
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self._registry = _registry()
        self._id = env_id
        # With one step more than the limit, what ends with the limit's step ends by itself.
        own_limit = {} if limit is None else {"max_episode_steps": limit + 1}
        self._arguments = {**arguments, **own_limit}
        self._limit = limit
        made = self._make([0])
        self._dropped_infos = _dropped_infos(made.config)
        self.num_envs = num_rows
        self.spec = GymnasiumSpec(env_id, kwargs={} if limit is None else {"max_episode_steps": limit})
        self.single_observation_space = made.observation_space
        self.single_action_space = made.action_space
        self.observation_space = batch_space(self.single_observation_space, num_rows)
        self.action_space = batch_space(self.single_action_space, num_rows)
        self._pool: Any = None
        self._num_steps = np.zeros(num_rows, np.int64)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins an episode in every row; see `VectorEnv.reset`.

        Args:
            seed: what all that the rows do until the next reset is a function of, with their actions; a whole number,
                not negative, or None for any.
            options: None; EnvPool has no place for others.

        Raises:
            ValueError: there are options.
        """
        if options:
            raise ValueError("EnvPool's environments take no options")
        seeds = np.random.SeedSequence(seed).generate_state(self.num_envs) >> 1
        self._pool = None  # only without any reference to it does a pool give back its thread and its memory
        self._pool = self._make(seeds.tolist())
        self._num_steps[:] = 0
        observations, infos = self._pool.reset()
        return observations, self._own(infos)

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Steps all rows, and begins an episode in those whose episode ends; see `VectorEnv.step`.

        Infos are those of the new episode where one begins, and there `final_obs` and `final_info` are what the step
        showed; both have all rows.

        Raises:
            ResetNeeded: there was no reset before.
            ValueError: an action is not in its space.
        """
        if self._pool is None:
            raise ResetNeeded("reset was expected before step")
        _check_actions(actions, self.action_space)
        observations, rewards, terminated, truncated, infos = self._pool.step(actions)
        infos = self._own(infos)
        self._num_steps += 1
        if self._limit is not None:
            truncated = truncated | (self._num_steps >= self._limit)
        ended = terminated | truncated
        if ended.any():
            self._num_steps[ended] = 0
            fresh, fresh_infos = self._pool.reset(options={"reset_mask": ended})
            rows = fresh_infos["env_id"]
            final = {"final_obs": observations, "final_info": infos}
            observations = _with_rows(observations, rows, fresh)
            infos = {**_with_rows(infos, rows, self._own(fresh_infos)), **final}
        return observations, rewards, terminated, truncated, infos

    def close(self, **kwargs: Any) -> None:
        """Gives the rows back; see `VectorEnv.close`."""
        self._pool = None
        super().close(**kwargs)

    def _make(self, seeds: list[int]) -> Any:
        """A pool with a row for each seed. It has one thread, as a worker has one core."""
        return self._registry.make_gymnasium(
            self._id, num_envs=len(seeds), num_threads=1, seed=seeds, **self._arguments
        )

    def _own(self, infos: Mapping[str, Any]) -> dict[str, Any]:
        """The environment's infos without those of the pool."""
        return {name: column for name, column in infos.items() if name not in self._dropped_infos}


def _registry() -> Any:
    """All that EnvPool has.

    Raises:
        NotFoundError: it is not installed.
    """
    try:
        from envpool.registration import registry
    except ImportError as error:
        text = f"'envpool' came, which needs a package that is not installed on the server: {error}"
        raise NotFoundError(
            f"{text} (pip install 'rollserve-server[envpool]')", reason=Reason.PACKAGE_NOT_FOUND, field="vectorization"
        ) from error
    return registry


def _check_parts(spec: EnvSpec) -> None:
    """Sees to it that there is nothing beside the id and its arguments, for which EnvPool has no place."""
    parts = {"wrappers": spec.wrappers, "task": spec.task, "reset_options_json": spec.reset_options}
    for field, part in parts.items():
        if part:
            text = f"'envpool' came, but its environments take no {field}: 'rows' was expected"
            raise InvalidValueError(text, field="vectorization")


def _dropped_infos(config: Mapping[str, Any]) -> frozenset[str]:
    repeated = [name for name, option in _REPEATED_INFOS.items() if not config.get(option)]
    return frozenset((*_POOLS_OWN_INFOS, *repeated))


def _check_actions(actions: Any, space: Any) -> None:
    """EnvPool looks at no action, and what is none may reach into memory that is another's."""
    if space.dtype is not None and space.dtype.kind != "f" and not space.contains(actions):
        raise ValueError(f"{actions} came as actions, elements of {space} were expected")


def _with_rows(columns: Any, rows: np.ndarray, part: Any) -> Any:
    """A copy of columns, each of which may hold others by their names, with some rows replaced."""
    if isinstance(columns, Mapping):
        return {name: _with_rows(column, rows, part[name]) for name, column in columns.items()}
    copied = columns.copy()
    copied[rows] = part
    return copied
