"""Environments from specs: what a request may name, and what becomes of its errors."""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import importlib.util
import inspect
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from rollserve import Reason
from rollserve_server.activity import Phase, current_activity
from rollserve_server.errors import (
    InvalidValueError,
    NotAllowedError,
    NotFoundError,
    describe,
    show,
    within,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from gymnasium.vector import VectorEnv

    from rollserve import EnvSpec, Task, Wrapper

__all__ = ["check_allowed", "close_env", "find_env", "make_env", "module_of", "own_infos", "refusing", "set_task"]

_REGISTERING_MODULES = ("ale_py",)
"""Modules of the server's extras that register environments when they are imported."""

_FORBIDDEN_WRAPPERS = {
    "ArrayConversion": "its environments give no numpy arrays",
    "Autoreset": "it hides the last observation of an episode",
    "HumanRendering": "it opens windows on the server",
    "JaxToNumpy": "it needs an environment of another framework",
    "JaxToTorch": "its environments give no numpy arrays",
    "NumpyToTorch": "its environments give no numpy arrays",
    "RecordVideo": "it writes files on the server",
}


def module_of(env_id: str) -> str | None:
    """The module that an id of the form `module:name` names, or None."""
    module, colon, _ = env_id.rpartition(":")
    return module if colon else None


def check_allowed(
    spec: EnvSpec, allowed_modules: Collection[str], allowed_methods: Collection[str] = ("set_task",)
) -> None:
    """Sees to it that making the environment runs only code that the operator agreed to.

    Args:
        spec: what a request asks for.
        allowed_modules: modules that ids may name; their submodules are allowed too.
        allowed_methods: methods that may set a task.

    Raises:
        NotAllowedError: the id names another module, or a wrapper writes files, opens windows or loses data.
    """
    module = module_of(spec.id)
    if module is not None and not any(module == name or module.startswith(f"{name}.") for name in allowed_modules):
        allowed = ", ".join(map(repr, sorted(allowed_modules))) or "none"
        text = f"module {module!r} came, but the server's operator allows {allowed} (option --allow-module)"
        raise NotAllowedError(text, reason=Reason.MODULE_NOT_ALLOWED, field="id")
    for position, wrapper in enumerate(spec.wrappers):
        why = _FORBIDDEN_WRAPPERS.get(wrapper.name)
        if why is not None:
            text = f"{wrapper.name!r} came, which is not allowed: {why}"
            raise NotAllowedError(text, reason=Reason.WRAPPER_NOT_ALLOWED, field=f"wrappers[{position}].name")
    if spec.task is not None and spec.task.method not in allowed_methods:
        allowed = ", ".join(map(repr, sorted(allowed_methods))) or "none"
        text = f"{spec.task.method!r} came, but the server's operator allows {allowed} (option --allow-method)"
        raise NotAllowedError(text, reason=Reason.METHOD_NOT_ALLOWED, field="task.method")
    if spec.kwargs.get("render_mode") == "human":
        text = "render_mode 'human' came, which is not allowed: it opens windows on the server"
        raise NotAllowedError(text, reason=Reason.RENDER_MODE_NOT_ALLOWED, field="kwargs_json")


def make_env(spec: EnvSpec) -> gymnasium.Env[Any, Any]:
    """A new environment. The caller has checked that the spec is allowed.

    Raises:
        NotFoundError: there is no such module, id, class or wrapper, or a package that it needs is not installed.
        InvalidValueError: the environment or a wrapper refused its arguments, or has no spaces.
    """
    current_activity().begin(Phase.MAKING)
    env = _make_unwrapped(spec)
    try:
        _check_spaces(spec.id, env)
        for position, wrapper in enumerate(spec.wrappers):
            with within(f"wrappers[{position}]"):
                env = _wrap(env, wrapper)
        if spec.task is not None:
            set_task(env, spec.task)
    except BaseException:
        close_env(env)
        raise
    return env


def close_env(env: gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any]) -> None:
    """Closes an environment. What it raises then is of no interest any more: something else has, or all is done."""
    current_activity().begin(Phase.CLOSING)
    with contextlib.suppress(BaseException):
        env.close()


def own_infos(infos: Any) -> dict[str, Any]:
    """What an environment gave as infos, as a dict that does nothing of its own; raises whatever the other does."""
    return infos if type(infos) is dict else dict(infos or {})


def set_task(env: gymnasium.Env[Any, Any], task: Task) -> None:
    """Sets the environment's task by the method that it, or a wrapper of it, has for that.

    Raises:
        InvalidValueError: there is no such method, or it refuses its argument.
    """
    current_activity().begin(Phase.MAKING)
    with _refused_by(task.method, "task.argument_json"):
        method = env.get_wrapper_attr(task.method) if env.has_wrapper_attr(task.method) else None
        if not callable(method):
            text = f"{task.method!r} came, a method of the environment was expected"
            raise InvalidValueError(text, field="task.method")
        method(copy.deepcopy(task.argument))


def _make_unwrapped(spec: EnvSpec) -> gymnasium.Env[Any, Any]:
    named = find_env(spec.id)
    arguments: dict[str, Any] = dict(spec.kwargs)
    make: Callable[..., Any]
    if isinstance(named, str):
        # The name is bound here: as an argument of the request it could be that of a module that is not allowed.
        make = functools.partial(gymnasium.make, named)
        arguments = {"disable_env_checker": True, **arguments}
    else:
        make = named
    env: gymnasium.Env[Any, Any] = refusing(spec.id, lambda: make(**arguments))
    return env


def find_env(env_id: str) -> str | type[gymnasium.Env[Any, Any]]:
    """What an id stands for: the id that gymnasium has registered, or a class. Imports its module, if it names one.

    Raises:
        NotFoundError: there is no such module, class or id.
    """
    module_name, name = module_of(env_id), env_id.rpartition(":")[2]
    named = None if module_name is None else _class_in(module_name, name)
    if named is None:
        _check_registered(name)
    return named or name


def _class_in(module_name: str, name: str) -> type[gymnasium.Env[Any, Any]] | None:
    """The environment's class in a module, or None if the name is an id that is registered."""
    try:
        # What a module has may be imported only when it is asked for.
        entry = getattr(importlib.import_module(module_name), name, None)
    except BaseException as error:
        text = f"module {module_name!r} cannot be imported on the server: {describe(error)}"
        raise NotFoundError(text, reason=Reason.MODULE_NOT_FOUND, field="id") from error
    if isinstance(entry, type) and issubclass(entry, gymnasium.Env):
        return entry
    if name in gymnasium.registry:
        return None
    if entry is None:
        text = f"{module_name!r} has no {name!r}, neither as a class nor as a registered id"
    else:
        text = f"{module_name}:{name} is not a gymnasium.Env"
    raise NotFoundError(text, reason=Reason.ENV_NOT_FOUND, field="id")


def _check_registered(name: str) -> None:
    """Raises NotFoundError unless gymnasium knows the id, also from a module of the server's extras."""
    if name not in gymnasium.registry:
        for module in _REGISTERING_MODULES:
            if importlib.util.find_spec(module) is not None:
                importlib.import_module(module)
    try:
        gymnasium.spec(name)
    except gymnasium.error.Error as error:
        text = f"{name!r} came, a registered id was expected: {show(error, str)}"
        raise NotFoundError(text, reason=Reason.ENV_NOT_FOUND, field="id") from None


def _wrap(env: gymnasium.Env[Any, Any], wrapper: Wrapper) -> gymnasium.Env[Any, Any]:
    names = gymnasium.wrappers.__all__
    cls = getattr(gymnasium.wrappers, wrapper.name) if wrapper.name in names else None
    if not (isinstance(cls, type) and issubclass(cls, gymnasium.Wrapper)):
        text = f"{wrapper.name!r} came, a wrapper of gymnasium.wrappers was expected"
        raise NotFoundError(text, reason=Reason.WRAPPER_NOT_FOUND, field="name")
    make = functools.partial(cls, env)
    wrapped: gymnasium.Env[Any, Any] = refusing(wrapper.name, lambda: make(**_python_arguments(cls, wrapper.kwargs)))
    return wrapped


def _python_arguments(cls: type, kwargs: Mapping[str, object]) -> dict[str, object]:
    """The arguments with JSON's arrays made into what the wrapper's annotations ask for: tuples or numpy arrays."""
    parameters = inspect.signature(cls).parameters
    arguments = dict(kwargs)
    for name, value in kwargs.items():
        annotation = str(parameters[name].annotation) if name in parameters else ""
        if isinstance(value, list) and "tuple" in annotation:
            arguments[name] = tuple(value)
        elif isinstance(value, list) and "ndarray" in annotation:
            arguments[name] = np.array(value)
    return arguments


def _check_spaces(env_id: str, env: gymnasium.Env[Any, Any]) -> None:
    for name in ("observation_space", "action_space"):
        space = refusing(env_id, functools.partial(getattr, env, name, None))
        if not isinstance(space, gymnasium.Space):
            came = "no" if space is None else f"{show(space)} as its"
            text = f"{env_id} has {came} {name}, a gymnasium.Space was expected"
            raise InvalidValueError(text, reason=Reason.ENV_REFUSED, field="id")


def refusing(owner: str, make: Callable[[], Any]) -> Any:
    """What `make` returns; its errors are the arguments' fault, or a missing package's.

    Raises:
        NotFoundError: a package is not installed.
        InvalidValueError: it raised something else.
    """
    with _refused_by(owner, "kwargs_json"):
        try:
            return make()
        except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
            text = f"{owner} needs a package that is not installed on the server: {show(error, str)}"
            raise NotFoundError(text, reason=Reason.PACKAGE_NOT_FOUND) from error


@contextlib.contextmanager
def _refused_by(owner: str, field: str) -> Iterator[None]:
    """Makes what is raised an error of the field, unless it tells already what it is about."""
    try:
        yield
    except (InvalidValueError, NotAllowedError, NotFoundError):
        raise
    # Whatever it is, SystemExit among others: the worker goes on.
    except BaseException as error:
        text = f"refused by {owner}: {describe(error)}"
        raise InvalidValueError(text, reason=Reason.ENV_REFUSED, field=field) from error
