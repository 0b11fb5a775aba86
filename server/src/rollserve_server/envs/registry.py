"""Ids of environments: what they name, and where it comes from."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
from collections.abc import Iterable
from typing import Any, TypeGuard

import gymnasium

from rollserve import Reason
from rollserve_server.errors import NotFoundError, describe, show

__all__ = ["find_env", "module_of", "suggestion"]

_REGISTERING_MODULES = ("ale_py",)
"""Modules of the server's extras that register environments when they are imported."""


def module_of(env_id: str) -> str | None:
    """Return the module of an id of the form `module:name`; None for other ids."""
    module, colon, _ = env_id.rpartition(":")
    return module if colon else None


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return a hint that names the known name most like an unknown one, ignoring case; empty if none is like it.

    A name that only lacks its namespace, such as `ALE/`, comes first.
    """
    by_lower = {each.lower(): each for each in known}
    same = [each for each in by_lower if each.endswith(f"/{name.lower()}")]
    matches = same or difflib.get_close_matches(name.lower(), by_lower, n=1)
    return f"did you mean {by_lower[matches[0]]!r}?" if matches else ""


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
        module = importlib.import_module(module_name)
        entry = getattr(module, name, None)
    except BaseException as error:
        text = f"module {module_name!r} cannot be imported on the server: {describe(error)}"
        raise NotFoundError(text, reason=Reason.MODULE_NOT_FOUND, field="id") from error
    if _is_env_class(entry):
        return entry
    if name in gymnasium.registry:
        return None
    expected = f"a subclass of gymnasium.Env or a registered id in module {module_name!r}"
    got = f"{name!r}, which it does not have" if entry is None else f"{name!r}, which is neither"
    classes = [known for known, value in vars(module).items() if _is_env_class(value)]
    hint = suggestion(name, [*classes, *gymnasium.registry])
    raise NotFoundError.of("id", expected=expected, got=got, hint=hint, reason=Reason.ENV_NOT_FOUND)


def _is_env_class(value: object) -> TypeGuard[type[gymnasium.Env[Any, Any]]]:
    return isinstance(value, type) and issubclass(value, gymnasium.Env)


def _check_registered(name: str) -> None:
    """Raise NotFoundError unless the id is registered, if need be after an import of the extras' modules."""
    if name not in gymnasium.registry:
        for module in _REGISTERING_MODULES:
            if importlib.util.find_spec(module) is not None:
                importlib.import_module(module)
    try:
        gymnasium.spec(name)
    except gymnasium.error.Error as error:
        hint = suggestion(name, gymnasium.registry) or show(error, str)
        raise NotFoundError.of(
            "id", expected="a registered id", got=repr(name), hint=hint, reason=Reason.ENV_NOT_FOUND
        ) from None
