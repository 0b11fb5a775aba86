"""EnvPool's environments as vector environments with same-step reset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from gymnasium.envs.registration import EnvSpec as GymnasiumSpec
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from rollserve_server.envs.making import call_with_arguments
from rollserve_server.envs.registry import suggestion
from rollserve_server.errors import InvalidValueError, NotFoundError, shorten
from rollserve_wire.errors import mismatch
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from rollserve_wire.environments import EnvSpec

__all__ = ["EnvPoolEnv", "FoundEnv", "check_actions", "find_envpool", "make_envpool"]

_NO_LIMIT = 2**31 - 1
"""EnvPool's step limit for environments without one."""

_POOL_INFOS = ("elapsed_step", "env_id", "players")

_REPEATED_INFOS = {"reward": "reward_clip", "terminated": "episodic_life"}
"""Infos that repeat the result of a step, unless the environment has this option and it is set."""

_POOL_ARGUMENTS = frozenset(
    {
        "base_path",
        "batch_size",
        "enable_render",
        "env_seed",
        "env_type",
        "from_pixels",
        "gym_reset_return_info",
        "max_num_players",
        "num_envs",
        "num_threads",
        "seed",
        "thread_affinity_offset",
    }
)
"""Arguments of the pool, not of the environment. The server sets them, or nobody."""

_ID_ARGUMENTS = frozenset({"adroit_task", "env_name", "hand_task", "map_id", "task", "task_id", "task_name"})
"""Arguments that the id determines."""

_MACHINE_SUFFIXES = ("_args", "_bytes", "_dim", "_dir", "_file", "_path")
"""Suffixes of arguments for files, programs, and sizes of memory that must match these."""

_KINDS = {
    bool: ((bool,), "true or false"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    str: ((str,), "a text"),
}
"""Accepted types of values by the type of the default, and their description."""

_MIN_INT, _MAX_INT = -(2**31), 2**31 - 1
_MAX_STEPS = _MAX_INT - 1
_MAX_SHOWN = 200  # characters of a value in the text of an error


def make_envpool(spec: EnvSpec, num_rows: int, max_episode_length: int | None) -> EnvPoolEnv:
    """Make an EnvPool environment. The caller has checked that the spec is allowed.

    Args:
        spec: environment, with an id of EnvPool.
        num_rows: number of rows.
        max_episode_length: step limit of episodes; None for the environment's own.

    Raises:
        NotFoundError: EnvPool is not installed, has no such id, or lacks a package that the environment needs.
        InvalidValueError: EnvPool refuses an argument, clients cannot set it, the environment has several players, or
            the spec has wrappers, a task or reset options.
    """
    found = find_envpool(spec)
    if found.num_players != 1:
        expected = "an environment with one player, or multi_agent beside it"
        raise InvalidValueError.of("id", expected=expected, got=f"{spec.id!r} with {found.num_players} players")
    arguments = found.arguments
    known_limit = arguments.pop("max_episode_steps", found.spec.config.max_episode_steps)
    limits = [limit for limit in (known_limit, max_episode_length) if limit is not None and limit < _NO_LIMIT]
    env: EnvPoolEnv = call_with_arguments(
        spec, lambda: EnvPoolEnv(spec.id, arguments, num_rows, min(limits, default=None))
    )
    return env


class FoundEnv(NamedTuple):
    """An environment of EnvPool that a request names.

    Attributes:
        registry: EnvPool's registry.
        spec: EnvPool's specification of the environment with its defaults.
        arguments: arguments of the request, which were checked.
    """

    registry: Any
    spec: Any
    arguments: dict[str, Any]

    @property
    def num_players(self) -> int:
        """Number of players."""
        return int(self.spec.config.max_num_players)


def find_envpool(spec: EnvSpec) -> FoundEnv:
    """Return the environment of EnvPool that a spec names.

    Raises:
        NotFoundError, InvalidValueError: as of `make_envpool`.
    """
    registry = _registry()
    if spec.id not in registry.specs:
        expected = "an id of EnvPool, such as 'Pong-v5'"
        hint = suggestion(spec.id, registry.specs)
        raise NotFoundError.of("id", expected=expected, got=repr(spec.id), hint=hint, reason=Reason.ENV_NOT_FOUND)
    _check_parts(spec)
    found = call_with_arguments(spec, lambda: registry.make_spec(spec.id))
    return FoundEnv(registry, found, _check_arguments(spec.kwargs, found.config._asdict()))


class EnvPoolEnv(VectorEnv[Any, Any, Any]):
    """M rows of an EnvPool environment.

    Each reset makes a new pool, because EnvPool takes seeds only then. Truncation by the step limit is decided here:
    EnvPool itself never calls an episode terminated that ends with its limit.
    """

    def __init__(self, env_id: str, arguments: Mapping[str, Any], num_rows: int, limit: int | None) -> None:
        """Make one row to learn its spaces; the first reset makes all.

        Args:
            env_id: id of EnvPool.
            arguments: arguments of the environment, which were checked.
            num_rows: M.
            limit: number of steps after which an episode is truncated; None for no limit.

        Raises:
            Exception: EnvPool refuses an argument.
        """
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self._registry = _registry()
        self._id = env_id
        # With a limit of one step more, EnvPool still reports whether the limit's last step terminates the episode.
        pool_limit = {} if limit is None else {"max_episode_steps": limit + 1}
        self._arguments = {**arguments, **pool_limit}
        self._limit = limit
        pool = self._make_pool([0])
        self._dropped_infos = _dropped_infos(pool.config)
        self.num_envs = num_rows
        self.spec = GymnasiumSpec(env_id, kwargs={} if limit is None else {"max_episode_steps": limit})
        self.single_observation_space = pool.observation_space
        self.single_action_space = pool.action_space
        self.observation_space = batch_space(self.single_observation_space, num_rows)
        self.action_space = batch_space(self.single_action_space, num_rows)
        self._pool: Any = None
        self._num_steps = np.zeros(num_rows, np.int64)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in every row.

        Args:
            seed: seed of everything that the rows do until the next reset, a non-negative whole number; None for any.
            options: None; EnvPool has no reset options.

        Raises:
            ValueError: there are options.
        """
        if options:
            raise ValueError(f"options: {mismatch('none, because EnvPool has no reset options', options)}")
        seeds = np.random.SeedSequence(seed).generate_state(self.num_envs) >> 1
        self._pool = None  # a pool releases its thread and memory only when nothing refers to it
        self._pool = self._make_pool(seeds.tolist())
        self._num_steps[:] = 0
        observations, infos = self._pool.reset()
        return observations, self._own(infos)

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Step all rows, and reset those whose episodes end.

        Where an episode begins, the infos belong to it. `final_obs` and `final_info` then hold what the step
        itself returned, for all rows.

        Raises:
            ResetNeeded: there was no reset before.
            ValueError: an action is not in its space.
        """
        if self._pool is None:
            raise ResetNeeded(mismatch("reset before step", "no reset"))
        check_actions(actions, self.action_space)
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
        """Release the pool."""
        self._pool = None
        super().close(**kwargs)

    def _make_pool(self, seeds: list[int]) -> Any:
        """Make a pool with a row for each seed. It has one thread, as a worker has one core."""
        return self._registry.make_gymnasium(
            self._id, num_envs=len(seeds), num_threads=1, seed=seeds, **self._arguments
        )

    def _own(self, infos: Mapping[str, Any]) -> dict[str, Any]:
        """Return the environment's infos, without the pool's."""
        return {name: column for name, column in infos.items() if name not in self._dropped_infos}


def _registry() -> Any:
    """Return EnvPool's registry.

    Raises:
        NotFoundError: EnvPool is not installed.
    """
    try:
        from envpool.registration import registry
    except ImportError as error:
        raise NotFoundError.of(
            "vectorization",
            expected="one whose package is installed on the server",
            got=f"'envpool' ({error})",
            hint="pip install 'rollserve-server[envpool]'",
            reason=Reason.PACKAGE_NOT_FOUND,
        ) from error
    return registry


def _check_parts(spec: EnvSpec) -> None:
    """Raise InvalidValueError if the spec has anything beside id and arguments: EnvPool has no place for it."""
    parts = {"wrappers": spec.wrappers, "task": spec.task, "reset_options_json": spec.reset_options}
    for field, part in parts.items():
        if part:
            expected = f"'rows', because EnvPool's environments take no {field}"
            raise InvalidValueError.of("vectorization", expected=expected, got="'envpool'")


def _dropped_infos(config: Mapping[str, Any]) -> frozenset[str]:
    repeated = [name for name, option in _REPEATED_INFOS.items() if not config.get(option)]
    return frozenset((*_POOL_INFOS, *repeated))


def check_actions(actions: Any, space: Any) -> None:
    """Raise ValueError for integer actions outside their space: EnvPool would use them to index memory."""
    if space.dtype is not None and space.dtype.kind != "f" and not space.contains(actions):
        raise ValueError(f"actions: {mismatch(f'elements of {space}', actions)}")


def _with_rows(columns: Any, rows: np.ndarray, part: Any) -> Any:
    """Return a copy of columns, or of a mapping with columns, with some rows replaced."""
    if isinstance(columns, Mapping):
        return {name: _with_rows(column, rows, part[name]) for name, column in columns.items()}
    copied = columns.copy()
    copied[rows] = part
    return copied


def _check_arguments(kwargs: Mapping[str, object], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a request as EnvPool takes them.

    Args:
        kwargs: arguments as JSON has them.
        defaults: the environment's whole configuration.

    Raises:
        InvalidValueError: an argument is unknown, cannot be set by clients, or is not of the type of its default.
    """
    for name in kwargs:
        _check_name(name, defaults)
    arguments = {name: _value(name, value, defaults[name]) for name, value in kwargs.items()}
    if not 1 <= arguments.get("max_episode_steps", 1) <= _MAX_STEPS:
        raise _refused("max_episode_steps", arguments["max_episode_steps"], f"a number from 1 to {_MAX_STEPS}")
    return arguments


def _check_name(name: str, defaults: Mapping[str, Any]) -> None:
    why_not = _why_not(name)
    if why_not is None and name in defaults:
        return
    known = ", ".join(sorted(known for known in defaults if _why_not(known) is None))
    got = f"{name!r}, which {why_not}" if why_not else repr(name)
    raise InvalidValueError.of("kwargs_json", expected=f"names among {known}", got=got)


def _why_not(name: str) -> str | None:
    """Return why clients cannot set an argument, or None if they can."""
    if name in _POOL_ARGUMENTS or name.startswith("render"):
        return "belongs to the pool, not to the environment"
    if name in _ID_ARGUMENTS or name.endswith(_MACHINE_SUFFIXES):
        return "the id determines"
    return None


def _value(name: str, value: object, default: Any) -> Any:
    if isinstance(default, list | tuple):
        return _values(name, value, default)
    kind = type(default)
    if kind not in _KINDS:
        got = f"{name!r}, which a request cannot set"
        raise InvalidValueError.of("kwargs_json", expected="other arguments", got=got)
    types, description = _KINDS[kind]
    if type(value) not in types:
        raise _refused(name, shorten(repr(value), _MAX_SHOWN), description)
    if kind is int and not _MIN_INT <= value <= _MAX_INT:  # type: ignore[operator]  # it is an int
        raise _refused(name, value, f"a number from {_MIN_INT} to {_MAX_INT}")
    return kind(value)


def _values(name: str, value: object, default: list[Any] | tuple[Any, ...]) -> Any:
    """Return the elements of a list, or of a tuple with as many elements as its default."""
    fits = isinstance(value, list) and default and (isinstance(default, list) or len(value) == len(default))
    if not isinstance(value, list) or not fits:
        raise _refused(name, shorten(repr(value), _MAX_SHOWN), f"a list such as {list(default)}")
    return type(default)(_value(name, element, default[0]) for element in value)


def _refused(name: str, got: object, expected: str) -> InvalidValueError:
    return InvalidValueError.of("kwargs_json", expected=f"{expected} as {name}", got=got)
