"""Ids of environments: what they name, and where it comes from."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import gymnasium

from rollserve import Reason
from rollserve_server.errors import NotFoundError, describe, show

__all__ = ["find_env", "module_of"]

_REGISTERING_MODULES = ("ale_py",)
"""Modules of the server's extras that register environments when they are imported."""


def module_of(env_id: str) -> str | None:
    """Return the module of an id of the form `module:name`; None for other ids."""
    module, colon, _ = env_id.rpartition(":")
    return module if colon else None


def find_env(env_id: str) -> str | type[gymnasium.Env[Any, Any]]:
    """Return what an id names: an id in gymnasium's registry, or a class. Imports the id's module, if it has one.

    Raises:
        NotFoundError: there is no such module, class or id.
    """
    module_name, name = module_of(env_id), env_id.rpartition(":")[2]
    named = None if module_name is None else _class_in(module_name, name)
    if named is None:
        _check_registered(name)
    return named or name


def _class_in(module_name: str, name: str) -> type[gymnasium.Env[Any, Any]] | None:
    """Return the environment's class in a module, or None if the name is a registered id."""
    try:
        # A module may import its attributes when they are read.
        entry = getattr(importlib.import_module(module_name), name, None)
    except BaseException as error:
        text = f"module {module_name!r} cannot be imported on the server: {describe(error)}"
        raise NotFoundError(text, reason=Reason.MODULE_NOT_FOUND, field="id") from error
    if isinstance(entry, type) and issubclass(entry, gymnasium.Env):
        return entry
    if name in gymnasium.registry:
        return None
    expected = f"a subclass of gymnasium.Env or a registered id in module {module_name!r}"
    got = f"{name!r}, which it does not have" if entry is None else f"{name!r}, which is neither"
    raise NotFoundError.of("id", expected=expected, got=got, reason=Reason.ENV_NOT_FOUND)


def _check_registered(name: str) -> None:
    """Raise NotFoundError unless the id is registered, if need be after an import of the extras' modules."""
    if name not in gymnasium.registry:
        for module in _REGISTERING_MODULES:
            if importlib.util.find_spec(module) is not None:
                importlib.import_module(module)
    try:
        gymnasium.spec(name)
    except gymnasium.error.Error as error:
        raise NotFoundError.of(
            "id", expected="a registered id", got=repr(name), hint=show(error, str), reason=Reason.ENV_NOT_FOUND
        ) from None
