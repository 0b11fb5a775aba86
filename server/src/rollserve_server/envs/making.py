"""Single environments: made with their wrappers and task, and closed; errors about arguments that they refuse."""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium

from rollserve_server.activity import Phase, current_activity
from rollserve_server.envs.atari import hasten_resets
from rollserve_server.envs.hosts.host import host_of
from rollserve_server.envs.registry import find_env, find_wrapper
from rollserve_server.errors import InvalidValueError, NotAllowedError, NotFoundError, describe, show, within
from rollserve_wire.environments import EnvSpec, Task, Wrapper
from rollserve_wire.python_arguments import python_arguments
from rollserve_wire.reasons import Reason

__all__ = [
    "call_with_arguments",
    "close_env",
    "drawing_hint",
    "find_method",
    "make_env",
    "refused_by",
    "set_task",
]

_MUJOCO_GL = "MUJOCO_GL"
"""Variable that names the library that MuJoCo draws with; the library is imported with MuJoCo."""

_DRAWING = "gymnasium.envs.mujoco.mujoco_rendering"


def make_env(spec: EnvSpec) -> gymnasium.Env[Any, Any]:
    """Make an environment. The caller has checked that the spec is allowed.

    Raises:
        NotFoundError: a module, id, class or wrapper does not exist, or a package is not installed.
        InvalidValueError: the environment or a wrapper refused its arguments, or the environment has no spaces.
    """
    current_activity().begin(Phase.MAKING)
    host = host_of(spec, 1)
    if host is not None:
        return host.row(0)
    env = _make_unwrapped(spec)
    try:
        _check_spaces(spec, env)
        hasten_resets(env)
        for position, wrapper in enumerate(spec.wrappers):
            with within(f"wrappers[{position}]"):
                env = _wrap(env, wrapper)
        if spec.task is not None:
            set_task(env, spec.task)
    except BaseException:
        close_env(env)
        raise
    return env


def close_env(env: Any) -> None:
    """Close an environment of any kind. Its exceptions are ignored: nobody uses the environment any more."""
    current_activity().begin(Phase.CLOSING)
    with contextlib.suppress(BaseException):
        env.close()


def set_task(env: gymnasium.Env[Any, Any], task: Task) -> None:
    """Set the task of an environment by a method of the environment or of one of its wrappers.

    Raises:
        InvalidValueError: there is no such method, or it refuses its argument.
    """
    current_activity().begin(Phase.MAKING)
    with refused_by(task.method, "task.argument_json"):
        find_method(env, task.method, "task.method")(copy.deepcopy(task.argument))


def find_method(env: gymnasium.Env[Any, Any], name: str, field: str) -> Callable[..., Any]:
    """Return a method of an environment or of one of its wrappers.

    Raises:
        InvalidValueError: there is no such method; it has the field.
    """
    method: Callable[..., Any] | None = env.get_wrapper_attr(name) if env.has_wrapper_attr(name) else None
    if not callable(method):
        raise InvalidValueError.of(field, expected="a method of the environment", got=repr(name))
    return method


def _make_unwrapped(spec: EnvSpec) -> gymnasium.Env[Any, Any]:
    named = find_env(spec.id)
    make: Callable[..., Any]
    code: Any
    if isinstance(named, str):
        # Bind the id here: as an argument of the request it could name a module that is not allowed.
        make = functools.partial(gymnasium.make, named, disable_env_checker=True)
        code, defaults = gymnasium.spec(named).entry_point, gymnasium.spec(named).kwargs
    else:
        make = code = named
        defaults = {}
    env: gymnasium.Env[Any, Any] = call_with_arguments(
        spec, lambda: make(**python_arguments(code, spec.kwargs, defaults))
    )
    return env


def _wrap(env: gymnasium.Env[Any, Any], wrapper: Wrapper) -> gymnasium.Env[Any, Any]:
    make: Callable[..., Any] = find_wrapper(wrapper.name)
    wrapped: gymnasium.Env[Any, Any] = call_with_arguments(
        wrapper, lambda: make(env, **python_arguments(make, wrapper.kwargs))
    )
    _check_spaces(wrapper, wrapped)
    return wrapped


def _check_spaces(spec: EnvSpec | Wrapper, env: gymnasium.Env[Any, Any]) -> None:
    """Raise InvalidValueError of the name unless an environment has spaces."""
    field, kind = ("id", "an environment") if isinstance(spec, EnvSpec) else ("name", "a wrapper")
    for name in ("observation_space", "action_space"):
        space = call_with_arguments(spec, functools.partial(getattr, env, name, None))
        if not isinstance(space, gymnasium.Space):
            expected = f"{kind} whose {name} is a gymnasium.Space"
            raise InvalidValueError.of(field, expected=expected, got=show(space), reason=Reason.ENV_REFUSED)


def call_with_arguments(spec: EnvSpec | Wrapper, make: Callable[[], Any]) -> Any:
    """Return the result of `make`; blame its errors on the arguments, or on a missing package.

    Args:
        spec: the environment or wrapper that is made.
        make: function that uses the arguments of the request.

    Raises:
        NotFoundError: a package is not installed.
        InvalidValueError: `make` raised another error; the field is `kwargs_json`, or the name without arguments.
    """
    owner, field = (spec.id, "id") if isinstance(spec, EnvSpec) else (spec.name, "name")
    with refused_by(owner, "kwargs_json" if spec.kwargs else field):
        try:
            try:
                return make()
            except Exception as error:
                if not _import_mujoco_alone(error):
                    raise
                return make()
        except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
            text = (
                f"{owner} needs a package that is not installed on the server: {show(error, str)}{drawing_hint(error)}"
            )
            raise NotFoundError(text, reason=Reason.PACKAGE_NOT_FOUND) from error


@contextlib.contextmanager
def refused_by(owner: str, field: str) -> Iterator[None]:
    """Turn exceptions in the block into an error of the field, except errors that name a field themselves."""
    try:
        yield
    except (InvalidValueError, NotAllowedError, NotFoundError):
        raise
    # The worker survives any exception, including SystemExit.
    except BaseException as error:
        text = f"refused by {owner}: {describe(error)}{drawing_hint(error)}"
        raise InvalidValueError(text, reason=Reason.ENV_REFUSED, field=field) from error


def drawing_hint(error: BaseException) -> str:
    """Return what to do about an error of MuJoCo's drawing, to be put behind its text; empty for another error."""
    if not _is_of_mujoco(error):
        return ""
    libraries = "MUJOCO_GL=egl with the library libegl1, or MUJOCO_GL=osmesa with libosmesa6"
    return f"; without a display, MuJoCo draws if the server's environment has {libraries}"


def _import_mujoco_alone(error: BaseException) -> bool:
    """Import MuJoCo without the library to draw, if that failed with this error; return whether it is imported now.

    Environments that are not rendered need no such library. What renders asks the variable again.
    """
    value = os.environ.get(_MUJOCO_GL)
    if value is None or "mujoco" in sys.modules or not _is_of_mujoco(error):
        return False
    os.environ[_MUJOCO_GL] = "disabled"
    try:
        importlib.import_module("mujoco")
    except Exception:
        return False
    finally:
        os.environ[_MUJOCO_GL] = value
    return True


def _is_of_mujoco(error: BaseException) -> bool:
    """Whether code of MuJoCo, or of gymnasium's drawing with it, has raised the error."""
    modules = (frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(name.partition(".")[0] == "mujoco" or name == _DRAWING for name in modules)
