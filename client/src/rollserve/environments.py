"""What an environment is made from, as a caller writes it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rollserve.checks import check_text, check_type
from rollserve.v1 import environment_pb2

__all__ = ["EnvSpec", "Wrapper", "env_spec_from_proto", "env_spec_to_proto", "kwargs_from_json"]


@dataclass(frozen=True)
class Wrapper:
    """A wrapper of `gymnasium.wrappers` by its name, with its keyword arguments as JSON has them.

    Raises:
        TypeError: the name is not a string, or the arguments are not a mapping.
    """

    name: str
    kwargs: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_type("name", self.name, str, "a string")
        check_type("kwargs", self.kwargs, Mapping, "a mapping")


@dataclass(frozen=True)
class EnvSpec:
    """How to make an environment.

    Attributes:
        id: what gymnasium has registered, such as `CartPole-v1`, or `module:Id` or `module:Class` for a module that the
            server's operator allows.
        kwargs: the keyword arguments of `gymnasium.make` or of the class, as JSON has them.
        wrappers: wrappers around the environment, innermost first.

    Raises:
        TypeError: one of them is of another type.
    """

    id: str
    kwargs: Mapping[str, object] = field(default_factory=dict)
    wrappers: Sequence[Wrapper] = ()

    def __post_init__(self) -> None:
        check_type("id", self.id, str, "a string")
        check_type("kwargs", self.kwargs, Mapping, "a mapping")
        check_type("wrappers", self.wrappers, Sequence, "a sequence of Wrappers")
        for position, wrapper in enumerate(self.wrappers):
            check_type(f"wrappers[{position}]", wrapper, Wrapper, 'a Wrapper, such as Wrapper("TimeLimit", {…}),')


def env_spec_to_proto(spec: EnvSpec) -> environment_pb2.Environment:
    """The spec as a message.

    Raises:
        ValueError: an argument cannot be written as JSON.
        InvalidArgumentError: a name cannot be encoded.
    """
    check_text("id", spec.id)
    for position, wrapper in enumerate(spec.wrappers):
        check_text(f"wrappers[{position}].name", wrapper.name)
    wrappers = [
        environment_pb2.Wrapper(name=wrapper.name, kwargs_json=_to_json(wrapper.name, wrapper.kwargs))
        for wrapper in spec.wrappers
    ]
    kwargs = _to_json(spec.id, spec.kwargs)
    return environment_pb2.Environment(id=spec.id, kwargs_json=kwargs, wrappers=wrappers)


def env_spec_from_proto(message: environment_pb2.Environment) -> EnvSpec:
    """The spec that the message describes.

    Raises:
        ValueError: arguments are not a JSON object.
    """
    wrappers = [Wrapper(wrapper.name, kwargs_from_json(wrapper.kwargs_json)) for wrapper in message.wrappers]
    return EnvSpec(message.id, kwargs_from_json(message.kwargs_json), tuple(wrappers))


def kwargs_from_json(text: str) -> dict[str, object]:
    """Keyword arguments from JSON; an empty text is none.

    Raises:
        ValueError: the text is not a JSON object.
    """
    try:
        kwargs = json.loads(text or "{}")
    except (ValueError, RecursionError):
        kwargs = None
    if not isinstance(kwargs, dict):
        raise ValueError(f"{text[:80]!r} came, a JSON object was expected")
    return kwargs


def _to_json(owner: str, kwargs: Mapping[str, object]) -> str:
    if not kwargs:
        return ""
    try:
        return json.dumps(dict(kwargs), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"kwargs of {owner} cannot be written as JSON: {error}") from None
