"""Permissions: which modules, wrappers, methods and render modes a request may name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollserve_server.envs.profiles import ProfileEnv
from rollserve_server.envs.registry import FORBIDDEN_WRAPPERS, module_of
from rollserve_server.errors import NotAllowedError, shorten
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Collection

    from rollserve_wire.environments import EnvSpec

__all__ = ["check_allowed", "check_method_allowed"]

_RENDER_MODES = (None, "rgb_array", "ansi", "depth_array", "rgbd_tuple")
"""Render modes that open no window and collect no frames. Names of other modes may mean either."""


def check_allowed(
    spec: EnvSpec, allowed_modules: Collection[str], allowed_methods: Collection[str] = ("set_task",)
) -> None:
    """Check that making the environment runs only code that the operator allows.

    Args:
        spec: environment of a request.
        allowed_modules: modules that ids and wrappers may name; `name.*` for all submodules of a package.
        allowed_methods: methods that may set a task.

    Raises:
        NotAllowedError: the id or a wrapper names another module, a wrapper writes files, opens windows or loses data,
            the task is set by another method, or the environment renders to a screen or collects its frames.
    """
    if not isinstance(spec, ProfileEnv):  # the operator's own
        names = {"id": spec.id} | {f"wrappers[{i}].name": wrapper.name for i, wrapper in enumerate(spec.wrappers)}
        for field, name in names.items():
            _check_module(field, name, allowed_modules)
    for position, wrapper in enumerate(spec.wrappers):
        why_not = FORBIDDEN_WRAPPERS.get(wrapper.name)
        if why_not is not None:
            raise NotAllowedError.of(
                f"wrappers[{position}].name",
                expected="a wrapper that is allowed",
                got=f"{wrapper.name!r}, which is not: {why_not}",
                reason=Reason.WRAPPER_NOT_ALLOWED,
            )
    if spec.task is not None:
        check_method_allowed(spec.task.method, allowed_methods, "task.method")
    mode = spec.kwargs.get("render_mode")
    if mode not in _RENDER_MODES:
        expected = f"a render_mode of {', '.join(map(repr, _RENDER_MODES))}, which opens no window on the server"
        got = shorten(repr(mode))
        raise NotAllowedError.of("kwargs_json", expected=expected, got=got, reason=Reason.RENDER_MODE_NOT_ALLOWED)


def check_method_allowed(method: str, allowed: Collection[str], field: str) -> None:
    """Raise NotAllowedError, with the field, if a request names a method that the operator does not allow."""
    if method not in allowed:
        expected = f"a method that the server's operator allows (option --allow-method: {_listed(allowed)})"
        raise NotAllowedError.of(field, expected=expected, got=repr(method), reason=Reason.METHOD_NOT_ALLOWED)


def _check_module(field: str, name: str, allowed: Collection[str]) -> None:
    """Raise NotAllowedError if an id or a wrapper names a module that is not allowed."""
    module = module_of(name)
    if module is not None and not _is_allowed(module, allowed):
        expected = f"a module that the server's operator allows (option --allow-module: {_listed(allowed)})"
        raise NotAllowedError.of(field, expected=expected, got=f"module {module!r}", reason=Reason.MODULE_NOT_ALLOWED)


def _is_allowed(module: str, allowed: Collection[str]) -> bool:
    """Whether a module is named, or is in a package whose submodules are allowed and is no program."""
    if module in allowed:
        return True
    is_program = module.rpartition(".")[2] == "__main__"  # importing it runs the package's program
    return not is_program and any(name.endswith(".*") and module.startswith(name[:-1]) for name in allowed)


def _listed(names: Collection[str]) -> str:
    return ", ".join(map(repr, sorted(set(names)))) or "none"
