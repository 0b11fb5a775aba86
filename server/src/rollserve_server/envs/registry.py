"""Ids of environments and names of wrappers: what they name, and where it comes from."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import types
from collections.abc import Iterable
from typing import Any, TypeGuard

import gymnasium

from rollserve_server.errors import InvalidValueError, NotAllowedError, NotFoundError, describe, show
from rollserve_wire.fixed_shapes import FixedShapes
from rollserve_wire.reasons import Reason

__all__ = [
    "FORBIDDEN_WRAPPERS",
    "find_env",
    "find_wrapper",
    "forbidden_wrapper",
    "imported_member",
    "module_of",
    "suggestion",
]

FORBIDDEN_WRAPPERS = {
    "ArrayConversion": "its environments return no numpy arrays",
    "Autoreset": "it hides the last observation of an episode",
    "HumanRendering": "it opens windows on the server",
    "JaxToNumpy": "it needs an environment of another framework",
    "JaxToTorch": "its environments return no numpy arrays",
    "NumpyToTorch": "its environments return no numpy arrays",
    "RecordVideo": "it writes files on the server",
}
"""Wrappers of gymnasium that requests may not name, and why."""

_OWN_WRAPPERS: dict[str, type[gymnasium.Wrapper[Any, Any, Any, Any]]] = {"FixedShapes": FixedShapes}
"""Wrappers that requests may name beside gymnasium's."""

_REGISTERING_MODULES = ("ale_py",)
"""Modules of the server's extras that register environments when they are imported."""


def module_of(name: str) -> str | None:
    """Return the module of an id or a wrapper of the form `module:name`; None for others."""
    module, colon, _ = name.rpartition(":")
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


def find_wrapper(name: str) -> type[gymnasium.Wrapper[Any, Any, Any, Any]]:
    """Return the class of a wrapper, of `gymnasium.wrappers`, `FixedShapes`, or `module:Class`. Imports the module.

    Raises:
        NotFoundError: there is no such module or class; the field is `name`.
        InvalidValueError: a module has something else of that name; the field is `name`.
        NotAllowedError: it is a forbidden one of gymnasium's; the field is `name`.
    """
    module_name, class_name = module_of(name), name.rpartition(":")[2]
    if module_name is None:
        names = gymnasium.wrappers.__all__
        found = getattr(gymnasium.wrappers, name) if name in names else _OWN_WRAPPERS.get(name)
        if not _is_wrapper_class(found):
            classes = [each for each in names if each[0].isupper()]
            raise _no_wrapper(name, "gymnasium.wrappers", [*classes, *_OWN_WRAPPERS])
        return found
    module, found = imported_member(module_name, class_name, "name")
    if found is None:
        known = (each for each, value in vars(module).items() if _is_wrapper_class(value))
        raise _no_wrapper(name, f"module {module_name!r}", known)
    if not _is_wrapper_class(found):
        got = f"{name!r}, which is {show(found)}"
        raise InvalidValueError.of("name", expected="a subclass of gymnasium.Wrapper", got=got)
    if str(found.__module__).startswith("gymnasium.") and found.__name__ in FORBIDDEN_WRAPPERS:
        raise forbidden_wrapper(name, FORBIDDEN_WRAPPERS[found.__name__])
    return found


def forbidden_wrapper(name: str, why: str) -> NotAllowedError:
    """Return the error for a wrapper that requests may not name."""
    got, reason = f"{name!r}, which is not: {why}", Reason.WRAPPER_NOT_ALLOWED
    return NotAllowedError.of("name", expected="a wrapper that is allowed", got=got, reason=reason)


def _no_wrapper(name: str, owner: str, known: Iterable[str]) -> NotFoundError:
    return NotFoundError.of(
        "name",
        expected=f"a wrapper in {owner}",
        got=repr(name),
        hint=suggestion(name.rpartition(":")[2], known),
        reason=Reason.WRAPPER_NOT_FOUND,
    )


def imported_member(module_name: str, name: str, field: str) -> tuple[types.ModuleType, Any]:
    """Return a module, and its attribute or None; raise NotFoundError of a field if it cannot be imported."""
    try:
        # A module may import its attributes when they are read.
        module = importlib.import_module(module_name)
        return module, getattr(module, name, None)
    except BaseException as error:
        text = f"module {module_name!r} cannot be imported on the server: {describe(error)}"
        raise NotFoundError(text, reason=Reason.MODULE_NOT_FOUND, field=field) from error


def _class_in(module_name: str, name: str) -> type[gymnasium.Env[Any, Any]] | None:
    """Return the environment's class in a module, or None if the name is a registered id."""
    module, entry = imported_member(module_name, name, "id")
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


def _is_wrapper_class(value: object) -> TypeGuard[type[gymnasium.Wrapper[Any, Any, Any, Any]]]:
    return isinstance(value, type) and issubclass(value, gymnasium.Wrapper)


def _check_registered(name: str) -> None:
    """Raise NotFoundError unless the id is registered, if need be after an import of the extras' modules."""
    if name not in gymnasium.registry:
        for module in _REGISTERING_MODULES:
            if importlib.util.find_spec(module) is not None:
                importlib.import_module(module)
    try:
        gymnasium.spec(name)
    except (gymnasium.error.Error, ValueError) as error:  # Python reads no number of thousands of digits as a version
        hint = suggestion(name, gymnasium.registry) or show(error, str)
        raise NotFoundError.of(
            "id", expected="a registered id", got=repr(name), hint=hint, reason=Reason.ENV_NOT_FOUND
        ) from None
