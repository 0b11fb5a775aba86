"""Permissions: which modules, wrappers, methods, render modes and paths a request may name, and how much of them."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rollserve_server.envs.host_starts import names_host
from rollserve_server.envs.profiles import ProfileEnv
from rollserve_server.envs.registry import FORBIDDEN_WRAPPERS, forbidden_wrapper, module_of
from rollserve_server.errors import InvalidValueError, NotAllowedError, shorten, within
from rollserve_server.fields import in_field, in_range
from rollserve_wire.columns import MAX_TEXT_INFO_BYTES
from rollserve_wire.environments import EnvChange, EnvSpec, env_spec_from_proto
from rollserve_wire.json_arguments import kwargs_from_json
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from rollserve_wire.v1 import environment_pb2

__all__ = [
    "check_allowed",
    "check_arguments",
    "check_method_allowed",
    "check_paths",
    "environment_from_proto",
    "paths_in",
]

_RENDER_MODES = (None, "rgb_array", "ansi", "depth_array", "rgbd_tuple")
"""Render modes that open no window and collect no frames. Names of other modes may mean either."""

_ELSEWHERE = re.compile(r"/|~|file:|(.*/)?\.\.(/|$)", re.IGNORECASE | re.DOTALL)
"""Paths that begin at the root or a home, or lead upwards from any folder."""

_MAX_SHOWN = 200  # characters of a path in the text of an error

_MAX_CHARACTERS = 4096
"""Length of the longest path that any file has. To resolve longer ones takes the square of their length."""

_MAX_WRAPPERS = _MAX_TRANSFORMS = 64
_MAX_ROWS, _MAX_EPISODES_PER_ROW = 4096, 1 << 16


def check_allowed(
    spec: EnvSpec,
    allowed_modules: Collection[str],
    allowed_methods: Collection[str] = ("set_task",),
    allowed_hosts: Collection[str] = (),
) -> None:
    """Check that making the environment runs only code that the operator allows.

    Args:
        spec: environment of a request.
        allowed_modules: modules that ids and wrappers may name; `name.*` for all submodules of a package.
        allowed_methods: methods that may set a task.
        allowed_hosts: addresses of hosts that workers may dial, and names of others, as `host:NAME`.

    Raises:
        NotAllowedError: the id names a host that is not allowed; the id or a wrapper names another module, a
            wrapper writes files, opens windows or loses data, the task is set by another method, or the environment
            renders to a screen or collects its frames.
    """
    if not isinstance(spec, ProfileEnv):  # the operator's own
        if names_host(spec.id):
            _check_host(spec.id, allowed_hosts)
            return
        names = {"id": spec.id} | {f"wrappers[{i}].name": wrapper.name for i, wrapper in enumerate(spec.wrappers)}
        for field, name in names.items():
            _check_module(field, name, allowed_modules)
    for position, wrapper in enumerate(spec.wrappers):
        why_not = FORBIDDEN_WRAPPERS.get(wrapper.name)
        if why_not is not None:
            with within(f"wrappers[{position}]"):
                raise forbidden_wrapper(wrapper.name, why_not)
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


def check_paths(update: EnvSpec | EnvChange, allowed: Collection[Path]) -> None:
    """Check that no argument of an environment is a path that the operator does not allow; see `check_arguments`."""
    check_arguments(_arguments_of(update), allowed)


def check_arguments(arguments: Mapping[str, object], allowed: Collection[Path]) -> None:
    """Check that no argument is a path that the operator does not allow, because a client may see what the file holds.

    Relative paths that name no file in the server's folder pass: they may name the environment's or agent's own files.

    Args:
        arguments: arguments by their field in the request.
        allowed: files and folders that arguments may name, with everything beneath the folders.

    Raises:
        NotAllowedError: an argument, or a part of one, is such a path.
    """
    for field, argument in arguments.items():
        for text in _paths(argument):
            if not any(_leads_into(text, path) for path in allowed):
                expected = "no path on the server that its operator does not allow (option --allow-path)"
                got = repr(shorten(text, _MAX_SHOWN))
                raise NotAllowedError.of(field, expected=expected, got=got, reason=Reason.PATH_NOT_ALLOWED)


def paths_in(spec: EnvSpec) -> list[Path]:
    """Return the paths among all arguments of an environment."""
    return [Path(text) for argument in _arguments_of(spec).values() for text in _paths(argument)]


def environment_from_proto(environment: environment_pb2.Environment, allowed_paths: Collection[Path]) -> EnvSpec:
    """Return the spec of an environment.

    Raises:
        InvalidValueError: a part is malformed or out of range.
        NotAllowedError: an argument is a path that is not allowed; see `check_paths`.
    """
    if len(environment.wrappers) > _MAX_WRAPPERS:
        expected, got = f"at most {_MAX_WRAPPERS} wrappers", len(environment.wrappers)
        raise InvalidValueError.of("wrappers", expected=expected, got=got)
    if len(environment.transforms) > _MAX_TRANSFORMS:
        expected, got = f"at most {_MAX_TRANSFORMS} transforms", len(environment.transforms)
        raise InvalidValueError.of("transforms", expected=expected, got=got)
    in_range("row_count", environment.row_count, 0, _MAX_ROWS)
    in_range("episodes_per_row", environment.episodes_per_row, 0, _MAX_EPISODES_PER_ROW)
    in_range("text_info_bytes", environment.text_info_bytes, 0, MAX_TEXT_INFO_BYTES)
    texts = {"kwargs_json": environment.kwargs_json, "reset_options_json": environment.reset_options_json}
    texts |= {f"wrappers[{i}].kwargs_json": wrapper.kwargs_json for i, wrapper in enumerate(environment.wrappers)}
    for field, text in texts.items():
        with in_field(field):
            kwargs_from_json(text)
    spec = env_spec_from_proto(environment)
    check_paths(spec, allowed_paths)
    return spec


def _check_module(field: str, name: str, allowed: Collection[str]) -> None:
    """Raise NotAllowedError if an id or a wrapper names a module that is not allowed."""
    module = module_of(name)
    if module is not None and not _is_allowed(module, allowed):
        expected = f"a module that the server's operator allows (option --allow-module: {_listed(allowed)})"
        raise NotAllowedError.of(field, expected=expected, got=f"module {module!r}", reason=Reason.MODULE_NOT_ALLOWED)


def _check_host(address: str, allowed: Collection[str]) -> None:
    """Raise NotAllowedError if an id names a host that is not allowed."""
    if address not in allowed:
        expected = f"a host that the server's operator allows (option --allow-host: {_listed(allowed)})"
        raise NotAllowedError.of("id", expected=expected, got=repr(address), reason=Reason.HOST_NOT_ALLOWED)


def _is_allowed(module: str, allowed: Collection[str]) -> bool:
    """Whether a module is named, or is in a package whose submodules are allowed and is no program."""
    if module in allowed:
        return True
    is_program = module.rpartition(".")[2] == "__main__"  # importing it runs the package's program
    return not is_program and any(name.endswith(".*") and module.startswith(name[:-1]) for name in allowed)


def _listed(names: Collection[str]) -> str:
    return ", ".join(map(repr, sorted(set(names)))) or "none"


def _arguments_of(update: EnvSpec | EnvChange) -> dict[str, object]:
    """Return all arguments by their field in the request."""
    arguments: dict[str, object] = {"kwargs_json": update.kwargs, "reset_options_json": update.reset_options}
    if update.task is not None:
        arguments["task.argument_json"] = update.task.argument
    wrappers = update.wrappers if isinstance(update, EnvSpec) else ()
    return arguments | {f"wrappers[{i}].kwargs_json": wrapper.kwargs for i, wrapper in enumerate(wrappers)}


def _paths(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _paths(key)
            yield from _paths(part)
    elif isinstance(value, list):
        for part in value:
            yield from _paths(part)
    elif isinstance(value, str) and (_ELSEWHERE.match(value) or _is_here(value)):
        yield value


def _is_here(text: str) -> bool:
    """Whether a text names a file in the server's folder, or a folder there by a path and not by a word."""
    return len(text) <= _MAX_CHARACTERS and (os.path.isfile(text) or ("/" in text and os.path.exists(text)))


def _leads_into(text: str, allowed: Path) -> bool:
    """Whether a path is the allowed one or lies beneath it, after links are resolved."""
    path = os.path.expanduser(text)
    if len(path) > _MAX_CHARACTERS:
        return False
    if not os.path.isabs(path) and _ELSEWHERE.match(path):
        return False  # only the environment knows from which folder the path leads upwards
    try:
        return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(allowed.expanduser()))
    except ValueError:  # the text has a character that no path has
        return False
