"""Arguments of native vector environments: checked here where their code does not check them itself."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import gymnasium

from rollserve_server.envs.registry import find_env
from rollserve_server.errors import InvalidValueError, shorten
from rollserve_server.machine import num_cores

if TYPE_CHECKING:
    from rollserve_wire.environments import EnvSpec

__all__ = ["check_arguments"]

_ALE = "ale_py.vector_env:AtariVectorEnv"
_ALE_POOL_ARGUMENTS = ("batch_size", "thread_affinity_offset")
"""Arguments of ALE's pool of rows, not of the environment: a worker steps all of its rows at once, on any core."""

_MAX_SHOWN = 200  # characters of an argument in the text of an error


def check_arguments(spec: EnvSpec) -> None:
    """Check the arguments of an environment that native code may step.

    Raises:
        NotFoundError: there is no such module, class or id.
        InvalidValueError: `max_episode_steps` is no step limit; or ALE's rows would not all be stepped at once, or by
            more threads than the machine has cores.
    """
    limit = spec.kwargs.get("max_episode_steps")
    if limit is not None and (type(limit) is not int or limit < 1):
        raise _refused("a whole number of at least 1 as max_episode_steps", limit)
    named = find_env(spec.id)
    if isinstance(named, str) and gymnasium.spec(named).vector_entry_point == _ALE:
        for name in _ALE_POOL_ARGUMENTS:
            if name in spec.kwargs:
                raise _refused(f"no {name}, which belongs to the pool of rows", spec.kwargs[name])
        num_threads = spec.kwargs.get("num_threads", 0)
        if type(num_threads) is not int or not 0 <= num_threads <= num_cores():
            raise _refused(f"a whole number from 0 to {num_cores()}, the server's cores, as num_threads", num_threads)


def _refused(expected: str, got: object) -> InvalidValueError:
    return InvalidValueError.of("kwargs_json", expected=expected, got=shorten(json.dumps(got), _MAX_SHOWN))
