"""Environments as callers specify them, the results of updating them, and which unit of work repeats."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rollserve_wire.checks import check_choice, check_count, check_flag, check_integer, check_text, check_type
from rollserve_wire.errors import FieldError, ServerError, mismatch
from rollserve_wire.json_arguments import kwargs_from_json, kwargs_to_json, value_from_json, value_to_json
from rollserve_wire.representations import briefly
from rollserve_wire.spaces import Space, space_from_proto
from rollserve_wire.transforms import Transform, transform_from_proto, transform_to_proto
from rollserve_wire.v1 import environment_pb2, episode_batch_pb2, samplers_pb2
from rollserve_wire.v1 import sampler_service_pb2 as pb

__all__ = [
    "EnvChange",
    "EnvSpec",
    "EnvUpdate",
    "MultiAgentApi",
    "Reproducibility",
    "RowEnvUpdates",
    "Task",
    "Vectorization",
    "Wrapper",
    "env_change_from_proto",
    "env_change_to_proto",
    "env_spec_from_proto",
    "env_spec_to_proto",
    "env_update_from_proto",
    "env_values_from_proto",
    "reproducibility_from_proto",
    "reproducibility_to_proto",
]


class Reproducibility(enum.Enum):
    """Unit of work that the same seed, indices and versions give again."""

    UNKNOWN = "unknown"
    """A class that only newer clients know."""
    EPISODE = "episode"
    """Every episode is the same, bit for bit, with any number of workers and whatever ran before."""
    BLOCK = "block"
    """Every block of episodes is the same, bit for bit, with any number of workers and whatever ran before. Rows that
    are stepped together share their random numbers, so another number of rows gives other episodes."""
    WORKER = "worker"
    """Work since a worker's start, at best, is the same: the environment is not a function of its seed."""


_BY_NUMBER = {
    episode_batch_pb2.REPRODUCIBILITY_EPISODE: Reproducibility.EPISODE,
    episode_batch_pb2.REPRODUCIBILITY_BLOCK: Reproducibility.BLOCK,
    episode_batch_pb2.REPRODUCIBILITY_WORKER: Reproducibility.WORKER,
}


_NUMBERS = {value: number for number, value in _BY_NUMBER.items()}


def reproducibility_to_proto(value: Reproducibility) -> episode_batch_pb2.Reproducibility.ValueType:
    """Return the number that stands for a class on the wire; KeyError for UNKNOWN."""
    return _NUMBERS[value]


def reproducibility_from_proto(number: episode_batch_pb2.Reproducibility.ValueType) -> Reproducibility:
    """Return the class that a number of the wire stands for; UNKNOWN for other numbers."""
    return _BY_NUMBER.get(number, Reproducibility.UNKNOWN)


Vectorization = Literal["rows", "native", "envpool"]
"""How the rows of an environment are stepped: one by one, or together by the environment's own code or by EnvPool."""

_VECTORIZATIONS: dict[Vectorization, environment_pb2.Vectorization.ValueType] = {
    "rows": environment_pb2.VECTORIZATION_ROWS,
    "native": environment_pb2.VECTORIZATION_NATIVE,
    "envpool": environment_pb2.VECTORIZATION_ENVPOOL,
}

MultiAgentApi = Literal["parallel", "aec"]
"""Interface of PettingZoo's environments with many agents: all agents act in each step, or one after the other."""

_MULTI_AGENT_APIS: dict[MultiAgentApi, environment_pb2.MultiAgentApi.ValueType] = {
    "parallel": environment_pb2.MULTI_AGENT_API_PARALLEL,
    "aec": environment_pb2.MULTI_AGENT_API_AEC,
}


@briefly
@dataclass(frozen=True)
class Wrapper:
    """A wrapper of `gymnasium.wrappers`, `FixedShapes`, or one of a module that the server's operator allows.

    Around an environment with many agents, a wrapper of PettingZoo or SuperSuit.

    >>> rollserve.Wrapper("TimeLimit", {"max_episode_steps": 200})  # doctest: +SKIP

    Attributes:
        name: name of the class in `gymnasium.wrappers`; `FixedShapes`, which makes arrays of one shape of Sequence,
            Graph and OneOf spaces; or `module:Class`, a subclass of `gymnasium.Wrapper`. Around an environment with
            many agents, name of the class in `pettingzoo.utils.wrappers`, or of a function of SuperSuit, such as
            `frame_stack_v1`; or `module:name`.
        kwargs: its keyword arguments except for the environment; JSON has to be able to hold them.

    Raises:
        TypeError: a name that is not a string, or arguments that are not a mapping.
    """

    name: str
    kwargs: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_type("name", self.name, str, "a string")
        check_type("kwargs", self.kwargs, Mapping, "a mapping")


@briefly
@dataclass(frozen=True)
class Task:
    """A task that an environment can be set to without being created again.

    Attributes:
        method: name of the environment's method that sets the task. Servers allow `set_task` unless their operator says
            otherwise.
        argument: the method's only argument; JSON has to be able to hold it.

    Raises:
        TypeError: a method that is not a string.
    """

    method: str
    argument: object

    def __post_init__(self) -> None:
        check_type("method", self.method, str, "a string")


@briefly
@dataclass(frozen=True)
class EnvSpec:
    """Specification of an environment.

    >>> rollserve.EnvSpec("CartPole-v1", {"max_episode_steps": 200}, num_rows=8)  # doctest: +SKIP

    Attributes:
        id: id that is registered with gymnasium, such as `CartPole-v1`; or `module:Id` or `module:Class` for a module
            that the server's operator allows; or `profile:NAME` for an environment that the operator has declared, of
            which `kwargs` alone can be set. With `vectorization="envpool"`, an id of EnvPool, such as `Pong-v5`.
        kwargs: keyword arguments of `gymnasium.make` or of the class, or with EnvPool the environment's own options.
            JSON has to be able to hold them.
        wrappers: wrappers around the environment, innermost first.
        task: task that the environment is set to after its creation; None leaves the environment's own.
        reset_options: `options` of each reset. JSON has to be able to hold them.
        vectorization: "rows" steps rows one by one. "native" steps all rows of a worker together, by the environment's
            own code for many rows. "envpool" takes the environment from EnvPool, which allows no wrappers, task or
            reset options. None takes the server's setting: unless the operator says otherwise, "native" where the
            environment offers it, else "rows". Where both exist and their spaces differ, as with ALE's games, the
            server refuses None.
        num_rows: number of rows that each worker steps at once for a call; None for the server's setting.
        num_episodes_per_row: number of episodes of each row in a block, where rows are stepped together; None for the
            server's setting.
        transforms: changes of rewards, actions and observations, innermost first; see `rollserve.transforms`. They
            apply to rows of all kinds alike, around the wrappers.
        text_info_bytes: bytes of UTF-8 of each text among the infos that batches hold, up to 65,536; see
            `rollserve.text_infos`. 0: infos that are no numbers are not delivered. The same for all rows and workers.
        multi_agent: interface of an environment of PettingZoo with many agents, "parallel" or "aec"; None for one agent
            and the interface of gymnasium. `id` is then an id of PettingZoo, such as `classic/connect_four-v3`,
            `mpe/NAME-vN` for the package mpe2, or `module:factory`; with `vectorization="envpool"`, an id of EnvPool
            with several players.
        global_state: whether batches have the global state of an environment with many agents, what its `state()`
            returns, as `MultiAgentBatch.global_states`.

    Raises:
        TypeError: an attribute of the wrong type.
        InvalidArgumentError: an unknown vectorization or interface, or a number out of range.
    """

    id: str
    kwargs: Mapping[str, object] = field(default_factory=dict)
    wrappers: Sequence[Wrapper] = ()
    task: Task | None = None
    reset_options: Mapping[str, object] = field(default_factory=dict)
    vectorization: Vectorization | None = None
    num_rows: int | None = None
    num_episodes_per_row: int | None = None
    transforms: Sequence[Transform] = ()
    text_info_bytes: int = 0
    multi_agent: MultiAgentApi | None = None
    global_state: bool = False

    def __post_init__(self) -> None:
        check_type("id", self.id, str, "a string")
        check_type("kwargs", self.kwargs, Mapping, "a mapping")
        check_type("wrappers", self.wrappers, Sequence, "a sequence of Wrappers")
        for position, wrapper in enumerate(self.wrappers):
            check_type(f"wrappers[{position}]", wrapper, Wrapper, 'a Wrapper, such as Wrapper("TimeLimit", {…})')
        check_type("transforms", self.transforms, Sequence, "a sequence of transforms")
        for position, transform in enumerate(self.transforms):
            check_type(f"transforms[{position}]", transform, Transform, "a transform, such as ClipRewards(-1, 1)")
        if self.task is not None:
            check_type("task", self.task, Task, "a Task")
        check_type("reset_options", self.reset_options, Mapping, "a mapping")
        if self.vectorization is not None:
            check_choice("vectorization", self.vectorization, _VECTORIZATIONS)
        if self.multi_agent is not None:
            check_choice("multi_agent", self.multi_agent, _MULTI_AGENT_APIS)
        for name in ("num_rows", "num_episodes_per_row"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        check_integer("text_info_bytes", self.text_info_bytes, 32, signed=False)
        check_flag("global_state", self.global_state)


@briefly
@dataclass(frozen=True)
class EnvChange:
    """Change of the present environment. What the change leaves out stays as it is.

    A change of keyword arguments creates the environments again; any other change is applied to the present ones.
    Episodes start over in either case, even if the change is empty.

    >>> sampler.update_env(rollserve.EnvChange(task=rollserve.Task("set_task", 3)))  # doctest: +SKIP

    Attributes:
        kwargs: keyword arguments to add to the present ones, or to replace them by name.
        task: task to set; None leaves the present one.
        reset_options: `options` of each reset from now on; None leaves the present ones.

    Raises:
        TypeError: an attribute of the wrong type.
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
        """Return the specification of the environment after the change."""
        return dataclasses.replace(
            spec,
            kwargs={**spec.kwargs, **self.kwargs},
            task=self.task or spec.task,
            reset_options=spec.reset_options if self.reset_options is None else self.reset_options,
        )


RowEnvUpdates = Sequence[EnvSpec | EnvChange | None]
"""A specification or a change for each row of a worker. None leaves the row's environment as it is."""


@briefly
@dataclass(frozen=True)
class EnvUpdate:
    """Result of an update of the environments.

    Attributes:
        env_version: version of the new environments.
        observation_space: space of their observations.
        action_space: space of their actions.
        reproducibility: which unit of work the same seed gives again.
        num_rows: number of rows that each worker steps at once for a call.
        num_episodes_per_row: number of episodes of each row in a block; None unless reproducibility is BLOCK.
        agents: names of the possible agents of an environment with many, whose spaces are in Dict spaces by these
            names; empty for an environment with one agent.
    """

    env_version: int
    observation_space: Space
    action_space: Space
    reproducibility: Reproducibility
    num_rows: int
    num_episodes_per_row: int | None
    agents: tuple[str, ...] = ()


def env_spec_to_proto(spec: EnvSpec) -> environment_pb2.Environment:
    """Return a specification as a message.

    Raises:
        ValueError: an argument that JSON cannot hold.
        InvalidArgumentError: a name that UTF-8 cannot encode.
    """
    check_text("id", spec.id)
    wrappers = []
    for position, wrapper in enumerate(spec.wrappers):
        path = f"wrappers[{position}]"
        check_text(f"{path}.name", wrapper.name)
        kwargs_json = kwargs_to_json(f"{path}.kwargs", wrapper.kwargs)
        wrappers.append(environment_pb2.Wrapper(name=wrapper.name, kwargs_json=kwargs_json))
    return environment_pb2.Environment(
        id=spec.id,
        kwargs_json=kwargs_to_json("kwargs", spec.kwargs),
        wrappers=wrappers,
        task=_task_to_proto(spec.task),
        reset_options_json=kwargs_to_json("reset_options", spec.reset_options),
        vectorization=_VECTORIZATIONS[spec.vectorization]
        if spec.vectorization
        else environment_pb2.VECTORIZATION_UNSPECIFIED,
        row_count=spec.num_rows or 0,
        episodes_per_row=spec.num_episodes_per_row or 0,
        transforms=map(transform_to_proto, spec.transforms),
        text_info_bytes=spec.text_info_bytes,
        multi_agent=_MULTI_AGENT_APIS[spec.multi_agent]
        if spec.multi_agent
        else environment_pb2.MULTI_AGENT_API_UNSPECIFIED,
        global_state=spec.global_state,
    )


def env_spec_from_proto(message: environment_pb2.Environment) -> EnvSpec:
    """Return the specification that a message describes.

    Raises:
        ValueError: arguments that are not a JSON object within the limits of `kwargs_from_json`, an unknown
            vectorization, or a malformed transform.
    """
    names = {number: name for name, number in _VECTORIZATIONS.items()}
    if message.vectorization and message.vectorization not in names:
        raise FieldError("vectorization", mismatch("a member of Vectorization", message.vectorization))
    apis = {number: name for name, number in _MULTI_AGENT_APIS.items()}
    if message.multi_agent and message.multi_agent not in apis:
        raise FieldError("multi_agent", mismatch("a member of MultiAgentApi", message.multi_agent))
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
        tuple(_transforms_from_proto(message)),
        message.text_info_bytes,
        apis.get(message.multi_agent),
        message.global_state,
    )


def env_change_to_proto(change: EnvChange) -> environment_pb2.EnvironmentChange:
    """Return a change as a message.

    Raises:
        ValueError: an argument that JSON cannot hold.
    """
    options = change.reset_options
    return environment_pb2.EnvironmentChange(
        kwargs_json=kwargs_to_json("kwargs", change.kwargs),
        task=_task_to_proto(change.task),
        reset_options_json=None if options is None else kwargs_to_json("reset_options", options),
    )


def env_change_from_proto(message: environment_pb2.EnvironmentChange) -> EnvChange:
    """Return the change that a message describes.

    Raises:
        ValueError: arguments that are not a JSON object within the limits of `kwargs_from_json`.
    """
    options = kwargs_from_json(message.reset_options_json) if message.HasField("reset_options_json") else None
    task = _task_from_proto(message.task) if message.HasField("task") else None
    return EnvChange(kwargs_from_json(message.kwargs_json), task, options)


def env_update_from_proto(
    response: pb.UpdateEnvResponse | samplers_pb2.CreateSamplerResponse,
    request: pb.UpdateEnvRequest | samplers_pb2.CreateSamplerRequest,
) -> EnvUpdate:
    """Return the result that the response to a request describes.

    Raises:
        ServerError: the server does not know transforms, and has left out the request's.
    """
    kept = isinstance(response, samplers_pb2.CreateSamplerResponse) and response.existed  # the request's is not used
    if not (response.has_transforms or kept) and any(each.transforms for each in _environments_of(request)):
        text = mismatch("a server that knows them", "one of an earlier version, which has made the environment without")
        raise ServerError(f"transforms: {text}", code="UNIMPLEMENTED", field="transforms")
    return EnvUpdate(
        response.environment_version,
        space_from_proto(response.observation_space),
        space_from_proto(response.action_space),
        reproducibility_from_proto(response.reproducibility),
        response.row_count,
        response.episodes_per_row or None,
        tuple(response.agents),
    )


def env_values_from_proto(response: pb.CallEnvironmentsResponse) -> list[Any]:
    """Return the values of a method that a response has."""
    return [value_from_json(text) for text in response.values_json]


def _environments_of(
    request: pb.UpdateEnvRequest | samplers_pb2.CreateSamplerRequest,
) -> Iterator[environment_pb2.Environment]:
    """Yield the whole environments of a request."""
    if isinstance(request, samplers_pb2.CreateSamplerRequest):
        yield request.environment
        return
    for update in (request.all_workers, *request.per_worker.updates):
        yield update.environment
        yield from (row.environment for row in update.per_row.updates)


def _transforms_from_proto(message: environment_pb2.Environment) -> Iterator[Transform]:
    for position, transform in enumerate(message.transforms):
        try:
            yield transform_from_proto(transform)
        except FieldError as error:
            raise FieldError(f"transforms[{position}].{error.field}", error.text) from None


def _task_to_proto(task: Task | None) -> environment_pb2.Task | None:
    if task is None:
        return None
    return environment_pb2.Task(method=task.method, argument_json=value_to_json("task.argument", task.argument))


def _task_from_proto(message: environment_pb2.Task) -> Task:
    try:
        return Task(message.method, value_from_json(message.argument_json))
    except ValueError as error:
        raise FieldError("task.argument_json", str(error)) from None
