"""Policies made by installed or pickled factories. This runs their code."""

from __future__ import annotations

import copy
import functools
import importlib.metadata
import pickle
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import threadpoolctl

from rollserve_server.agents.specs.python import InstalledFactory, PickledFactory
from rollserve_server.errors import InvalidValueError, NotFoundError, describe
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    import numpy as np
    from gymnasium import Space

    from rollserve_server.agents.python_policy import PythonPolicy
    from rollserve_server.agents.specs.python import Factory

__all__ = ["find_installed", "make_policy"]

_GROUP = "rollserve.agents"
_METHODS = ("set_parameters", "initial_states", "act")
_T = TypeVar("_T")


def find_installed(name: str) -> importlib.metadata.EntryPoint:
    """Return the entry point of a name, without importing its module.

    Raises:
        NotFoundError: no entry point has this name.
    """
    # Among several with one name, take the one that Python finds first, as with modules.
    entries = {entry.name: entry for entry in reversed(importlib.metadata.entry_points(group=_GROUP))}
    if name not in entries:
        names = f"one of {', '.join(map(repr, sorted(entries)))}" if entries else "an installed agent (there is none)"
        raise NotFoundError.of(
            "name",
            expected=names,
            got=repr(name),
            hint=f"install a package with an entry point in the group {_GROUP!r}",
            reason=Reason.AGENT_NOT_FOUND,
        )
    return entries[name]


def make_policy(
    factory: Factory, observation_space: Space[Any], action_space: Space[Any], parameters: Mapping[str, np.ndarray]
) -> PythonPolicy:
    """Make a policy, and set its parameters.

    Raises:
        NotFoundError: no agent of the name is installed here, or its module cannot be imported.
        InvalidValueError: the pickle cannot be read, or the code refuses its arguments or parameters; the error names
            the field.
    """
    arguments: dict[str, object] = {}
    match factory:
        case InstalledFactory(name, kwargs):
            make, owner, field = _imported(name), name, "kwargs_json"
            arguments = copy.deepcopy(dict(kwargs))
        case PickledFactory(data):
            make, owner, field = _unpickled(data), "the pickled factory", "data"
    policy = _refusing(owner, field, lambda: make(observation_space, action_space, **arguments))
    missing = _refusing(owner, field, lambda: [name for name in _METHODS if not callable(getattr(policy, name, None))])
    if missing:
        text = f"{owner} made a {type(policy).__name__} without a method {missing[0]}, see docs/agents.md"
        raise InvalidValueError(text, reason=Reason.AGENT_REFUSED)
    threadpoolctl.threadpool_limits(1)  # again, for libraries that the code has loaded
    read_only = {name: _read_only(value) for name, value in parameters.items()}
    _refusing("set_parameters", "parameters", lambda: policy.set_parameters(read_only))
    return policy


@functools.cache
def _imported(name: str) -> Callable[..., PythonPolicy]:
    entry = find_installed(name)
    try:
        factory = entry.load()
    except BaseException as error:
        text = f"{name!r} is installed, but {entry.value!r} cannot be imported: {describe(error)}"
        raise NotFoundError(text, reason=Reason.MODULE_NOT_FOUND, field="name") from error
    if not callable(factory):
        got = f"{name!r}, which names {entry.value!r}, a {type(factory).__name__}"
        raise InvalidValueError.of("name", expected="a factory", got=got, reason=Reason.AGENT_REFUSED)
    return factory  # type: ignore[no-any-return]


def _unpickled(data: bytes) -> Callable[..., PythonPolicy]:
    try:
        factory = pickle.loads(data)  # noqa: S301  # the operator allows it
    except BaseException as error:
        text = f"the pickle cannot be read: {describe(error)}"
        raise InvalidValueError(text, reason=Reason.AGENT_REFUSED, field="data") from error
    if not callable(factory):
        got = f"a pickled {type(factory).__name__}"
        raise InvalidValueError.of("data", expected="a pickled factory", got=got, reason=Reason.AGENT_REFUSED)
    return factory  # type: ignore[no-any-return]


def _refusing(owner: str, field: str, call: Callable[[], _T]) -> _T:
    try:
        return call()
    except BaseException as error:
        text = f"refused by {owner}: {describe(error)}"
        raise InvalidValueError(text, reason=Reason.AGENT_REFUSED, field=field) from error


def _read_only(array: np.ndarray) -> np.ndarray:
    view = array.view()
    view.flags.writeable = False
    return view
