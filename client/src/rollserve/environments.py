"""What an environment is made from, as a caller writes it."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from rollserve._checks import check_choice, check_count, check_text, check_type
from rollserve.v1 import environment_pb2

__all__ = [
    "EnvChange",
    "EnvSpec",
    "Task",
    "Vectorization",
    "Wrapper",
    "env_change_from_proto",
    "env_change_to_proto",
    "env_spec_from_proto",
    "env_spec_to_proto",
    "kwargs_from_json",
    "kwargs_to_json",
]

Vectorization = Literal["rows", "native", "envpool"]
"""How the rows of an environment are stepped: one by one, or all at once by its own code or by EnvPool."""

_VECTORIZATIONS: dict[Vectorization, environment_pb2.Vectorization.ValueType] = {
    "rows": environment_pb2.VECTORIZATION_ROWS,
    "native": environment_pb2.VECTORIZATION_NATIVE,
    "envpool": environment_pb2.VECTORIZATION_ENVPOOL,
}
_MOST_DEPTH = 64
"""Of arrays and objects in each other: what copies or writes arguments may recurse."""
_TOO_DEEP = f"arrays and objects came more than {_MOST_DEPTH} deep in each other"


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
class Task:
    """What an environment is set to do, without being made anew.

    Attributes:
        method: the method that sets it. Servers allow `set_task` unless their operator says otherwise.
        argument: the method's only argument, as JSON has it.
    """

    method: str
    argument: object

    def __post_init__(self) -> None:
        check_type("method", self.method, str, "a string")


@dataclass(frozen=True)
class EnvSpec:
    """How to make an environment.

    Attributes:
        id: what gymnasium has registered, such as `CartPole-v1`, or `module:Id` or `module:Class` for a module that the
            server's operator allows; with "envpool" an id of EnvPool's, such as `Pong-v5`.
        kwargs: the keyword arguments of `gymnasium.make` or of the class, or the environment's own options in EnvPool,
            as JSON has them.
        wrappers: wrappers around the environment, innermost first.
        task: what it is set to do once it is made; None for what it does by itself.
        reset_options: what each reset gets as its `options`, as JSON has them.
        vectorization: "rows" to step rows one by one, "native" to step them all at once by the environment's own code
            for many, "envpool" for an environment of EnvPool's, which takes no wrappers, task or reset options; None
            for what the server is set to, which is natively where the environment offers it unless its operator says
            otherwise.
        num_rows: how many rows each worker steps at once for a call; None for what the server is set to.
        num_episodes_per_row: where rows are stepped together, how many episodes of each make a block; None for what
            the server is set to.

    Raises:
        TypeError: one of them is of another type.
        InvalidArgumentError: the vectorization is unknown, or a number is not positive.
    """

    id: str
    kwargs: Mapping[str, object] = field(default_factory=dict)
    wrappers: Sequence[Wrapper] = ()
    task: Task | None = None
    reset_options: Mapping[str, object] = field(default_factory=dict)
    vectorization: Vectorization | None = None
    num_rows: int | None = None
    num_episodes_per_row: int | None = None

    def __post_init__(self) -> None:
        check_type("id", self.id, str, "a string")
        check_type("kwargs", self.kwargs, Mapping, "a mapping")
        check_type("wrappers", self.wrappers, Sequence, "a sequence of Wrappers")
        for position, wrapper in enumerate(self.wrappers):
            check_type(f"wrappers[{position}]", wrapper, Wrapper, 'a Wrapper, such as Wrapper("TimeLimit", {…}),')
        if self.task is not None:
            check_type("task", self.task, Task, "a Task")
        check_type("reset_options", self.reset_options, Mapping, "a mapping")
        if self.vectorization is not None:
            check_choice("vectorization", self.vectorization, _VECTORIZATIONS)
        for name in ("num_rows", "num_episodes_per_row"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))


@dataclass(frozen=True)
class EnvChange:
    """A change of the environment that is there; what is left out stays as it is.

    With nothing given, environments only begin anew. They are made anew if their keyword arguments change, and else
    changed in place.

    Attributes:
        kwargs: keyword arguments that are added to those that are there, or replace them.
        task: what it is set to do.
        reset_options: what each reset gets from now on as its `options`.

    Raises:
        TypeError: one of them is of another type.
    """

    kwargs: Mapping[str, object] = field(default_factory=dict)
    task: Task | None = None
    reset_options: Mapping[str, object] | None = None

    def __post_init__(self) -> None:
        check_type("kwargs", self.kwargs, Mapping, "a mapping")
        if self.task is not None:
            check_type("task", self.task, Task, "a Task")
        if self.reset_options is not None:
            check_type("reset_options", self.reset_options, Mapping, "a mapping")

    def applied_to(self, spec: EnvSpec) -> EnvSpec:
        """The environment after the change."""
        return dataclasses.replace(
            spec,
            kwargs={**spec.kwargs, **self.kwargs},
            task=self.task or spec.task,
            reset_options=spec.reset_options if self.reset_options is None else self.reset_options,
        )


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
        environment_pb2.Wrapper(name=wrapper.name, kwargs_json=kwargs_to_json(wrapper.name, wrapper.kwargs))
        for wrapper in spec.wrappers
    ]
    return environment_pb2.Environment(
        id=spec.id,
        kwargs_json=kwargs_to_json(spec.id, spec.kwargs),
        wrappers=wrappers,
        task=_task_to_proto(spec.task),
        reset_options_json=kwargs_to_json("reset_options", spec.reset_options),
        vectorization=_VECTORIZATIONS[spec.vectorization]
        if spec.vectorization
        else environment_pb2.VECTORIZATION_UNSPECIFIED,
        row_count=spec.num_rows or 0,
        episodes_per_row=spec.num_episodes_per_row or 0,
    )


def env_change_to_proto(change: EnvChange) -> environment_pb2.EnvironmentChange:
    """The change as a message.

    Raises:
        ValueError: an argument cannot be written as JSON.
    """
    options = change.reset_options
    return environment_pb2.EnvironmentChange(
        kwargs_json=kwargs_to_json("kwargs", change.kwargs),
        task=_task_to_proto(change.task),
        reset_options_json=None if options is None else kwargs_to_json("reset_options", options),
    )


def env_change_from_proto(message: environment_pb2.EnvironmentChange) -> EnvChange:
    """The change that the message describes.

    Raises:
        ValueError: arguments are not JSON of the kind that they should be.
    """
    options = kwargs_from_json(message.reset_options_json) if message.HasField("reset_options_json") else None
    task = _task_from_proto(message.task) if message.HasField("task") else None
    return EnvChange(kwargs_from_json(message.kwargs_json), task, options)


def env_spec_from_proto(message: environment_pb2.Environment) -> EnvSpec:
    """The spec that the message describes.

    Raises:
        ValueError: see `kwargs_from_json`; or the vectorization is unknown.
    """
    names = {number: name for name, number in _VECTORIZATIONS.items()}
    if message.vectorization and message.vectorization not in names:
        raise ValueError(f"vectorization: {message.vectorization} came, a value of Vectorization was expected")
    wrappers = [Wrapper(wrapper.name, kwargs_from_json(wrapper.kwargs_json)) for wrapper in message.wrappers]
    task = _task_from_proto(message.task) if message.HasField("task") else None
    options = kwargs_from_json(message.reset_options_json)
    return EnvSpec(
        message.id,
        kwargs_from_json(message.kwargs_json),
        tuple(wrappers),
        task,
        options,
        names.get(message.vectorization),
        message.row_count or None,
        message.episodes_per_row or None,
    )


def kwargs_from_json(text: str) -> dict[str, object]:
    """Keyword arguments from JSON; an empty text is none.

    Raises:
        ValueError: the text is not a JSON object, nests more than 64 deep, or has a number or a text that JSON has no
            place for: one beyond float64, one that is no Unicode.
    """
    try:
        kwargs = json.loads(text or "{}", parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    except ValueError:
        kwargs = None
    if not isinstance(kwargs, dict):
        raise ValueError(f"{text[:80]!r} came, a JSON object was expected")
    _check_values(kwargs)
    return kwargs


def kwargs_to_json(owner: str, kwargs: Mapping[str, object]) -> str:
    """Keyword arguments of something as JSON; an empty text for none.

    Raises:
        ValueError: JSON has no place for one; the message names the owner.
    """
    if not kwargs:
        return ""
    try:
        return json.dumps(dict(kwargs), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"kwargs of {owner} cannot be written as JSON: {error}") from None


def _task_to_proto(task: Task | None) -> environment_pb2.Task | None:
    if task is None:
        return None
    try:
        return environment_pb2.Task(method=task.method, argument_json=json.dumps(task.argument, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ValueError(f"task.argument: cannot be written as JSON: {error}") from None


def _task_from_proto(message: environment_pb2.Task) -> Task:
    try:
        return Task(message.method, _value_from_json(message.argument_json))
    except ValueError as error:
        raise ValueError(f"task.argument_json: {error}") from None


def _value_from_json(text: str) -> object:
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    except ValueError:
        raise ValueError(f"{text[:80]!r} came, JSON was expected") from None
    _check_values([value])
    return value


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} came")


def _check_values(container: Mapping[str, object] | list[object]) -> None:
    """Raises ValueError for what Python's parser lets pass, and what others could not read or write."""
    containers: list[object] = [container]
    for _ in range(_MOST_DEPTH):
        parts = [part for container in containers for part in _parts(container)]
        for value in parts:
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError("a number beyond float64 came, finite numbers were expected")
            if isinstance(value, str) and value != value.encode(errors="replace").decode():
                raise ValueError(f"{value[:80]!a} came, which has half a surrogate pair; Unicode was expected")
        containers = [part for part in parts if isinstance(part, Mapping | list)]
        if not containers:
            return
    raise ValueError(_TOO_DEEP)


def _parts(container: object) -> Iterable[object]:
    if isinstance(container, Mapping):
        return (*container, *container.values())
    return container if isinstance(container, list) else ()
