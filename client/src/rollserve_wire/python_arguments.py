"""Arguments from JSON as the values of Python that a function's parameters ask for: JSON has no tuples or arrays."""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["python_arguments"]

_LISTS = frozenset({"list", "sequence"})
"""Annotations of parameters that take a list as it is, also where a union has a tuple beside it."""

_SEQUENCES = _LISTS | {"collection", "iterable", "mutablesequence", "tuple"}
_MAPPINGS = frozenset({"dict", "mapping", "mutablemapping"})


def python_arguments(
    make: Any, kwargs: Mapping[str, object], defaults: Mapping[str, object] | None = None
) -> dict[str, Any]:
    """Return the arguments with JSON arrays converted to what parameters ask for: tuples or arrays, nested ones too.

    A parameter asks by its annotation, or by a default that is a tuple; without either, lists stay lists.

    Args:
        make: class or function that gets the arguments, or the entry point of a registered environment,
            `module:name`, which is imported if there are lists.
        kwargs: the arguments, from JSON.
        defaults: registered arguments of an environment.
    """
    arguments = dict(kwargs)
    nested = {name: value for name, value in kwargs.items() if isinstance(value, list | dict)}
    if not nested:
        return arguments
    if isinstance(make, str):
        module, _, member = make.partition(":")
        make = getattr(importlib.import_module(module), member)
    parameters: Mapping[str, inspect.Parameter] = {}
    with contextlib.suppress(TypeError, ValueError):  # of native code
        parameters = inspect.signature(make).parameters
    for name, value in nested.items():
        parameter = parameters.get(name)
        members = [] if parameter is None else list(_members(_parsed(str(parameter.annotation))))
        default = (defaults or {}).get(name, None if parameter is None else parameter.default)
        arguments[name] = _converted(value, members, default)
    return arguments


def _converted(value: Any, members: Sequence[ast.expr], default: Any) -> Any:
    """Return a value as the members of an annotation and a default ask for it."""
    if isinstance(value, dict):
        values = [part for parts in _parts(members, _MAPPINGS) if len(parts) == 2 for part in _members(parts[1])]
        known = default if isinstance(default, Mapping) else {}
        return {key: _converted(each, values, known.get(key)) for key, each in value.items()}
    if not isinstance(value, list):
        return value
    kinds = set(map(_name, members))
    takes_lists = bool(kinds & _LISTS)
    is_tuple = isinstance(default, tuple) or ("tuple" in kinds and not takes_lists)
    if "ndarray" in kinds and not is_tuple and not takes_lists:
        return np.array(value)
    elements = [
        _converted(each, list(_element_members(members, position, len(value))), _element_default(default, position))
        for position, each in enumerate(value)
    ]
    return tuple(elements) if is_tuple else elements


def _element_members(members: Sequence[ast.expr], position: int, length: int) -> Iterator[ast.expr]:
    """Yield the members of the annotation of one element of a sequence of a length."""
    for member in members:
        for parts in _parts([member], _SEQUENCES):
            is_fixed = _name(member) == "tuple" and not (len(parts) == 2 and _is_ellipsis(parts[1]))
            if not is_fixed:
                yield from _members(parts[0])
            elif len(parts) == length:
                yield from _members(parts[position])


def _element_default(default: Any, position: int) -> Any:
    """Return the element of a default that shows what an element has to be; further ones are as the last."""
    return default[min(position, len(default) - 1)] if isinstance(default, tuple | list) and default else None


def _parts(members: Sequence[ast.expr], names: frozenset[str]) -> Iterator[Sequence[ast.expr]]:
    """Yield what is in the brackets of members with one of the names."""
    for member in members:
        if isinstance(member, ast.Subscript) and _name(member) in names:
            yield member.slice.elts or [member.slice] if isinstance(member.slice, ast.Tuple) else [member.slice]


def _members(annotation: ast.expr | None) -> Iterator[ast.expr]:
    """Yield the members of a union, and of the unions in it; an annotation that is no union is its only member."""
    match annotation:
        case None:
            return
        case ast.Constant(value=str(text)) | ast.Call(args=[ast.Constant(value=str(text)), *_]):  # a forward reference
            yield from _members(_parsed(text))
        case ast.BinOp(op=ast.BitOr(), left=left, right=right):
            yield from _members(left)
            yield from _members(right)
        case ast.Subscript(slice=inner) if _name(annotation) in ("annotated", "optional", "union"):
            parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            for part in parts[:1] if _name(annotation) == "annotated" else parts:
                yield from _members(part)
        case _:
            yield annotation


def _parsed(annotation: str) -> ast.expr | None:
    """Return an annotation as an expression; None if it is none. Brackets with what is no expression are left out."""
    text = re.sub(r"<class '([^']*)'>", r"\1", annotation)
    text = re.sub(r"<[^<>]*>", "None", text)  # objects, such as those beside a type that is annotated
    while True:
        with contextlib.suppress(SyntaxError, ValueError):
            return ast.parse(text, mode="eval").body
        text, num_left_out = re.subn(r"\[[^][]*\]", "", text)
        if not num_left_out:
            return None


def _name(annotation: ast.expr) -> str:
    """Return the name in front of brackets, without modules, in lower case; empty for what has none."""
    if isinstance(annotation, ast.Subscript):
        return _name(annotation.value)
    if isinstance(annotation, ast.Attribute):
        return annotation.attr.lower()
    return annotation.id.lower() if isinstance(annotation, ast.Name) else ""


def _is_ellipsis(annotation: ast.expr) -> bool:
    return isinstance(annotation, ast.Constant) and annotation.value is ...
