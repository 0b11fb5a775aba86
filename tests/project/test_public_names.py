"""The public names of the client, so that a change of them is seen where it is made.

`python tests/project/test_public_names.py` writes the list; docs/compatibility.md says which changes break programs.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import typing
from collections.abc import Iterator
from pathlib import Path

import rollserve

LIST = Path(__file__).with_name("public_names.txt")
MODULES = ("rollserve", "rollserve.bridges", "rollserve.data", "rollserve.spaces", "rollserve.transforms")
OPTIONS = (rollserve.SamplingOptions, rollserve.EvaluationOptions)
RETURNED = ("DrivenStep", "Reader", "Sampler", "Session", "Stream")
"""Ends of the names of classes that programs only get from functions."""


def public_names() -> Iterator[str]:
    """Yield each public name with its parameters, behind which `=` stands for a default; then members of classes."""
    for module in map(importlib.import_module, MODULES):
        for name in module.__all__:
            value, path = getattr(module, name), f"{module.__name__}.{name}"
            if typing.is_typeddict(value):
                yield f"{path}({', '.join(f'{key}=' for key in value.__annotations__)})"
            elif inspect.isclass(value):
                is_made = not (name.endswith(RETURNED) or issubclass(value, enum.Enum))
                made = parameters(value) if is_made else {}
                yield f"{path}({', '.join(made.values())})" if is_made else path
                yield from (f"{path}.{member}" for member in members(value, without=made))
            else:
                yield f"{path}({', '.join(parameters(value).values())})" if inspect.isfunction(value) else path


def members(kind: type, without: typing.Container[str]) -> Iterator[str]:
    """Yield the public members of a class, of its own or a base of the client's, other than its parameters."""
    own = {name for base in kind.__mro__ if base.__module__.startswith("rollserve") for name in vars(base)}
    for name in sorted(own):
        if not name.startswith("_") and name not in without:
            value = getattr(kind, name)
            yield f"{name}({', '.join(parameters(value).values())})" if callable(value) else name


def parameters(value: typing.Callable[..., object]) -> dict[str, str]:
    """Return the parameters of a function or class by name, as they are listed."""
    found = dict(inspect.signature(value).parameters)
    found.pop("self", None)
    listed = {}
    for options in OPTIONS:
        if options.__annotations__.keys() <= found.keys():
            found = {name: each for name, each in found.items() if name not in options.__annotations__}
            listed[options.__name__] = f"**{options.__name__}"
    kinds = [each.kind for each in found.values()]
    shown = {
        name: {each.VAR_POSITIONAL: f"*{name}", each.VAR_KEYWORD: f"**{name}"}.get(
            each.kind, name if each.default is each.empty else f"{name}="
        )
        for name, each in found.items()
    }
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        first = list(found)[kinds.index(inspect.Parameter.KEYWORD_ONLY)]
        shown[first] = f"*, {shown[first]}"
    return shown | listed


def test_public_names_are_listed() -> None:
    assert list(public_names()) == LIST.read_text().splitlines(), "see the module's docstring"


if __name__ == "__main__":
    LIST.write_text("".join(f"{name}\n" for name in public_names()))
