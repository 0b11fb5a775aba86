"""Environments of gymnasium, gym and dm_env behind one interface."""

from __future__ import annotations

import importlib
import inspect
import math
from typing import Any, Callable, Dict, Mapping, Optional, Tuple

import numpy as np

__all__ = ["DmEnvironment", "Environment", "environment_factory", "limits_of", "versions"]

_PACKAGES = ("gymnasium", "gym", "dm_env", "dm_env_rpc", "numpy")
_ADAPTERS = {"dm_env_rpc": ("dm_env_rpc", "DmEnvRpcEnvironment"), "openenv": ("openenv", "OpenEnvEnvironment")}
"""Module and class of each protocol."""


class Environment:
    """An environment of gymnasium or gym, of any version.

    Attributes:
        observation_space, action_space: its spaces, of gymnasium or gym.
        max_episode_steps: number of steps after which it truncates an episode; 0 for none.
        is_nondeterministic: whether its episodes are more than functions of seeds and actions.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        """Make the environment."""
        self._env = env = make()
        self.observation_space, self.action_space = env.observation_space, env.action_space
        spec = getattr(env, "spec", None)
        self.max_episode_steps: int = getattr(spec, "max_episode_steps", None) or 0
        self.is_nondeterministic = bool(getattr(spec, "nondeterministic", False))
        parameters = inspect.signature(env.reset).parameters
        takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
        self._seeds_resets = "seed" in parameters or (takes_any and not hasattr(env, "seed"))

    def set_task(self, method: str, argument: object) -> None:
        """Call a method with an argument."""
        getattr(self._env, method)(argument)

    def reset(self, seed: int, options: Optional[Mapping[str, Any]]) -> Tuple[Any, Mapping[str, Any]]:
        """Begin an episode; return its first observation and infos."""
        if self._seeds_resets:
            result = self._env.reset(seed=seed, **({"options": dict(options)} if options else {}))
        else:
            self._env.seed(seed % (1 << 32))  # generators of old environments take 32 bits
            result = self._env.reset()
        is_pair = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)
        return result if is_pair else (result, {})

    def step(self, action: Any) -> Tuple[Any, float, bool, bool, Mapping[str, Any]]:
        """Make a step; return observation, reward, terminated, truncated and infos."""
        result = self._env.step(action)
        if len(result) == 5:
            return result  # type: ignore[no-any-return]
        observation, reward, done, infos = result
        truncated = bool(done and infos.get("TimeLimit.truncated", False))
        return observation, reward, bool(done) and not truncated, truncated, infos

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


class DmEnvironment(Environment):
    """An environment of dm_env. An episode is a function of its seed where the constructor takes one."""

    def __init__(self, env: Any, make: Callable[..., Any], seed_name: str) -> None:
        """Take an environment.

        Args:
            env: the environment.
            make: makes it again, with a seed as its only argument.
            seed_name: name of that argument; empty for none.
        """
        self._env, self._make, self._seed_name = env, make, seed_name
        self._action_spec = env.action_spec()
        self.observation_space, self.action_space = _space(env.observation_spec()), _space(self._action_spec)
        self.max_episode_steps, self.is_nondeterministic = 0, not seed_name

    def reset(self, seed: int, options: Optional[Mapping[str, Any]]) -> Tuple[Any, Mapping[str, Any]]:
        if self._seed_name:  # the interface has no seeds, so each episode has an environment of its own
            self._leave()
            self._env = self._make(**{self._seed_name: seed % (1 << 32)})
        return self._env.reset().observation, {}

    def step(self, action: Any) -> Tuple[Any, float, bool, bool, Mapping[str, Any]]:
        step = self._env.step(_fitting(action, self._action_spec))
        is_over = bool(step.last())
        terminated = is_over and self._is_terminal(step)
        infos = {} if step.discount is None else {"discount": np.float64(step.discount)}
        return step.observation, step.reward or 0.0, terminated, is_over and not terminated, infos

    def close(self) -> None:
        self._leave()

    def _is_terminal(self, step: Any) -> bool:
        """Whether a last step ends the episode; if not, its time is over."""
        return bool(step.discount == 0)

    def _leave(self) -> None:
        """Close the present environment."""
        self._env.close()


class Box:
    """A Box space, for environments that have no package with spaces."""

    def __init__(self, low: Any, high: Any, shape: Tuple[int, ...], dtype: Any) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.low, self.high = (np.broadcast_to(np.asarray(bound, dtype), shape) for bound in (low, high))


class Discrete:
    """A Discrete space."""

    shape = ()

    def __init__(self, n: int, start: int) -> None:
        self.n, self.start = n, start


class Dict_:
    """A Dict space."""

    def __init__(self, spaces: Dict[str, Any]) -> None:
        self.spaces = spaces


class Tuple_:
    """A Tuple space."""

    def __init__(self, spaces: Tuple[Any, ...]) -> None:
        self.spaces = spaces


Dict_.__name__, Tuple_.__name__ = "Dict", "Tuple"  # as gymnasium and gym name theirs


def environment_factory(name: str) -> Callable[[Mapping[str, Any]], Environment]:
    """Return a function that makes the environment of a name with arguments.

    Args:
        name: an id of gymnasium, or, where that is not installed, of gym; `gym:ID` for one of gym in any case;
            `module:name` for a class or function of a module, which makes an environment of gymnasium, gym or dm_env;
            `dm_env_rpc://HOST:PORT` for a server of dm_env_rpc, `openenv://HOST:PORT` for one of OpenEnv.

    Raises:
        ImportError, AttributeError: there is no such module or name.
    """
    scheme, separator, _ = name.partition("://")
    if separator and scheme.replace("+tls", "") in _ADAPTERS:
        module, adapter = _ADAPTERS[scheme.replace("+tls", "")]
        adapted = getattr(importlib.import_module("rollserve_env_host." + module), adapter)
        return lambda kwargs: adapted(name, **kwargs)
    module_name, _, attribute = name.rpartition(":")
    if module_name not in ("", "gym", "gymnasium"):
        make = getattr(importlib.import_module(module_name), attribute)
        return lambda kwargs: _adapted(make, kwargs)
    package = _package(module_name)
    return lambda kwargs: Environment(lambda: package.make(attribute, **kwargs))


def limits_of(dtype: Any) -> Tuple[Any, Any]:
    """Return the least and the largest value of a dtype of numbers or truth values."""
    dtype = np.dtype(dtype)
    if dtype.kind in "iu":
        return np.iinfo(dtype).min, np.iinfo(dtype).max
    return (-math.inf, math.inf) if dtype.kind == "f" else (False, True)


def versions() -> Dict[str, str]:
    """Return the versions of the packages that environments are made with, as far as they are imported."""
    import sys

    found = {name: getattr(sys.modules.get(name), "__version__", None) for name in _PACKAGES}
    return {name: str(version) for name, version in found.items() if version is not None}


def _adapted(make: Callable[..., Any], kwargs: Mapping[str, Any]) -> Environment:
    env = make(**kwargs)
    if not hasattr(env, "observation_spec"):
        return Environment(lambda: env)
    try:
        parameters: Any = inspect.signature(make).parameters
    except ValueError:
        parameters = ()
    seed_name = next((name for name in ("seed", "random_state", "random_seed") if name in parameters), "")
    return DmEnvironment(env, lambda **seed: make(**{**kwargs, **seed}), "" if seed_name in kwargs else seed_name)


def _package(name: str) -> Any:
    if name:
        return importlib.import_module(name)
    try:
        return importlib.import_module("gymnasium")
    except ImportError:
        return importlib.import_module("gym")


def _space(spec: Any) -> Any:
    """Return the space of a spec of dm_env, which may be nested."""
    if isinstance(spec, Mapping):
        return Dict_({key: _space(spec[key]) for key in sorted(spec)})
    if isinstance(spec, (list, tuple)):
        return Tuple_(tuple(map(_space, spec)))
    dtype = np.dtype(spec.dtype)
    if dtype.kind not in "biuf" or any(size < 0 for size in spec.shape):
        raise ValueError("{}: expected numbers of one shape, got {}".format(spec.name, spec))
    lowest, highest = limits_of(dtype)
    low, high = getattr(spec, "minimum", lowest), getattr(spec, "maximum", highest)
    if dtype.kind in "iu" and not spec.shape and high < highest:
        return Discrete(int(high) - int(low) + 1, int(low))
    return Box(low, high, tuple(spec.shape), dtype)


def _fitting(action: Any, spec: Any) -> Any:
    """Return an action with the types of its spec, which may be nested: Discrete spaces have one type only."""
    if isinstance(spec, Mapping):
        return {key: _fitting(action[key], part) for key, part in spec.items()}
    if isinstance(spec, (list, tuple)):
        return tuple(_fitting(*parts) for parts in zip(action, spec))
    return np.asarray(action, spec.dtype)[()]
