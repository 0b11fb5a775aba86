"""Agents in Python from what is installed beside the server, or from a pickle. This runs their code."""

from __future__ import annotations

import copy
import functools
import importlib.metadata
import pickle
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import threadpoolctl

from rollserve import Reason
from rollserve_server.agents.python.specs import InstalledFactory, PickledFactory
from rollserve_server.errors import InvalidValueError, NotFoundError, describe

if TYPE_CHECKING:
    import numpy as np
    from gymnasium import Space

    from rollserve_server.agents.python.policy import PythonPolicy
    from rollserve_server.agents.python.specs import Factory

__all__ = ["find_installed", "make_policy"]

_GROUP = "rollserve.agents"
_METHODS = ("set_parameters", "initial_states", "act")
_T = TypeVar("_T")


def find_installed(name: str) -> importlib.metadata.EntryPoint:
    """The entry point of a name, without importing what it names.

    Raises:
        NotFoundError: there is none.
    """
    # Of several with one name, the one that Python finds first, as with modules.
    entries = {entry.name: entry for entry in reversed(importlib.metadata.entry_points(group=_GROUP))}
    if name not in entries:
        installed = f"one of {', '.join(map(repr, sorted(entries)))}" if entries else "none is installed, and one"
        text = f"{name!r} came, {installed} was expected: entry points of the group {_GROUP!r}"
        raise NotFoundError(text, reason=Reason.AGENT_NOT_FOUND, field="name")
    return entries[name]


def make_policy(
    factory: Factory, observation_space: Space[Any], action_space: Space[Any], parameters: Mapping[str, np.ndarray]
) -> PythonPolicy:
    """What the factory makes, with its parameters.

    Raises:
        NotFoundError: nothing of the name is installed here, or it cannot be imported.
        InvalidValueError: the pickle cannot be read, or the code refuses what it is given; the message names the field.
    """
    arguments: dict[str, object] = {}
    match factory:
        case InstalledFactory(name, kwargs):
            make, owner, field = _imported(name), name, "kwargs_json"
            arguments = copy.deepcopy(dict(kwargs))
        case PickledFactory(data):
            make, owner, field = _unpickled(data), "the pickled factory", "data"
    policy = _refusing(owner, field, lambda: make(observation_space, action_space, **arguments))
    lacking = _refusing(owner, field, lambda: [name for name in _METHODS if not callable(getattr(policy, name, None))])
    if lacking:
        text = f"{owner} made a {type(policy).__name__} without a method {lacking[0]}, see docs/agents.md"
        raise InvalidValueError(text, reason=Reason.AGENT_REFUSED)
    threadpoolctl.threadpool_limits(1)  # also of libraries that the code has loaded
    given = {name: _read_only(value) for name, value in parameters.items()}
    _refusing("set_parameters", "parameters", lambda: policy.set_parameters(given))
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
        text = f"{name!r} stands for {entry.value!r}, which is a {type(factory).__name__}, a factory was expected"
        raise InvalidValueError(text, reason=Reason.AGENT_REFUSED, field="name")
    return factory  # type: ignore[no-any-return]


def _unpickled(data: bytes) -> Callable[..., PythonPolicy]:
    try:
        factory = pickle.loads(data)  # noqa: S301  # the operator has allowed it
    except BaseException as error:
        text = f"it cannot be read: {describe(error)}"
        raise InvalidValueError(text, reason=Reason.AGENT_REFUSED, field="data") from error
    if not callable(factory):
        text = f"a pickled {type(factory).__name__} came, a factory was expected"
        raise InvalidValueError(text, reason=Reason.AGENT_REFUSED, field="data")
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
