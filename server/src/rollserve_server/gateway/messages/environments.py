"""Environments and their updates as messages and back, and which of their arguments clients may see."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rollserve_server.envs import (
    MethodCall,
    check_arguments,
    check_paths,
    environment_from_proto,
    requested,
    space_to_proto,
)
from rollserve_server.errors import InvalidValueError
from rollserve_server.fields import in_field, optional, set_fields
from rollserve_server.gateway.messages.fields import Updates, expectation_of, updates_from_proto
from rollserve_server.pool import RowUpdates
from rollserve_wire.environments import EnvSpec, env_change_from_proto, reproducibility_to_proto
from rollserve_wire.json_arguments import kwargs_from_json, value_from_json
from rollserve_wire.v1 import environment_pb2
from rollserve_wire.v1 import sampler_service_pb2 as pb

if TYPE_CHECKING:
    from rollserve_server.pool import EnvUpdate, EnvUpdated, Expectation
    from rollserve_wire.environments import EnvChange, Wrapper

__all__ = [
    "EnvCallRequest",
    "PrivateArguments",
    "env_call_from_proto",
    "env_updated_to_proto",
    "env_updates_from_proto",
]


_MAX_ARGUMENTS = 16


class EnvCallRequest(NamedTuple):
    """A request for the values of a method of environments, of the current version if it names none."""

    call: MethodCall
    env_version: int | None
    expected: Expectation


def env_updates_from_proto(request: pb.UpdateEnvRequest, allowed_paths: Collection[Path]) -> Updates[EnvUpdate]:
    """Return the updates of a request.

    Raises:
        InvalidValueError: a part is missing or malformed.
        NotAllowedError: an argument is a path that is not allowed; see `check_paths`.
    """
    return updates_from_proto(request, lambda update: _env_update_from_proto(update, allowed_paths))


def env_updated_to_proto(updated: EnvUpdated) -> pb.UpdateEnvResponse:
    """Return the response to an update of the environments."""
    return pb.UpdateEnvResponse(
        environment_version=updated.version,
        observation_space=space_to_proto(updated.description.observation_space),
        action_space=space_to_proto(updated.description.action_space),
        reproducibility=reproducibility_to_proto(updated.description.reproducibility),
        row_count=updated.description.num_rows,
        episodes_per_row=updated.description.num_episodes_per_row or 0,
        has_transforms=any(spec.transforms for spec in updated.specs),
        agents=updated.description.agents,
    )


def env_call_from_proto(request: pb.CallEnvironmentsRequest, allowed_paths: Collection[Path]) -> EnvCallRequest:
    """Return the call of a method that a request asks for.

    Raises:
        InvalidValueError: an argument is malformed, or there are too many.
        NotAllowedError: an argument is a path that is not allowed; see `check_arguments`.
    """
    if len(request.arguments_json) > _MAX_ARGUMENTS:
        expected, got = f"at most {_MAX_ARGUMENTS} arguments", len(request.arguments_json)
        raise InvalidValueError.of("arguments_json", expected=expected, got=got)
    arguments = []
    for position, text in enumerate(request.arguments_json):
        with in_field(f"arguments_json[{position}]"):
            arguments.append(value_from_json(text))
    check_arguments({f"arguments_json[{i}]": value for i, value in enumerate(arguments)}, allowed_paths)
    call = MethodCall(request.method, tuple(arguments))
    return EnvCallRequest(call, optional(request, "environment_version"), expectation_of(set_fields(request)))


def _env_update_from_proto(update: environment_pb2.EnvironmentUpdate, allowed_paths: Collection[Path]) -> EnvUpdate:
    match update.WhichOneof("update"):
        case "per_row":
            updates = []
            for position, row_update in enumerate(update.per_row.updates):
                with in_field(f"per_row.updates[{position}]"):
                    updates.append(_row_update_from_proto(row_update, allowed_paths))
            return RowUpdates(tuple(updates))
        case None:
            raise InvalidValueError.of("update", expected="environment, change or per_row", got="none")
        case _:
            return _spec_or_change_from_proto(update, allowed_paths)


def _row_update_from_proto(
    update: environment_pb2.EnvironmentUpdate, allowed_paths: Collection[Path]
) -> EnvSpec | EnvChange | None:
    match update.WhichOneof("update"):
        case "per_row":
            raise InvalidValueError.of("per_row", expected="environment, change or nothing", got="another per_row")
        case None:
            return None
        case _:
            return _spec_or_change_from_proto(update, allowed_paths)


def _spec_or_change_from_proto(
    update: environment_pb2.EnvironmentUpdate, allowed_paths: Collection[Path]
) -> EnvSpec | EnvChange:
    if update.HasField("environment"):
        with in_field("environment"):
            return environment_from_proto(update.environment, allowed_paths)
    with in_field("change"):
        for field in ("kwargs_json", "reset_options_json"):
            with in_field(field):
                kwargs_from_json(getattr(update.change, field))
        change = env_change_from_proto(update.change)
        check_paths(change, allowed_paths)
        return change


class PrivateArguments:
    """Arguments of environments that the server's operator has given, which may be keys or passwords.

    Of environments of profiles, clients see nothing but the profile's name and the arguments of requests.

    They are known by the environment's id and their names. Values do not count: a client that sets one could find out
    by them whether it has guessed it.
    """

    def __init__(self, env: EnvSpec) -> None:
        """Hide the arguments of the environment that the server was started with."""
        env = requested(env)
        self._id = env.id
        self._kwargs = frozenset(env.kwargs)
        self._wrappers = {wrapper.name: frozenset(wrapper.kwargs) for wrapper in env.wrappers}

    def hidden(self, specs: Iterable[EnvSpec]) -> list[str]:
        """Return the names of the arguments that `without` leaves out of any of the environments."""
        own = (spec for spec in map(requested, specs) if spec.id == self._id)
        return list(dict.fromkeys(name for spec in own for name in self._hidden(spec)))

    def without(self, spec: EnvSpec) -> EnvSpec:
        """Return the environment without the operator's arguments."""
        spec = requested(spec)
        if spec.id != self._id:
            return spec
        wrappers = tuple(self._without(wrapper) for wrapper in spec.wrappers)
        return dataclasses.replace(spec, kwargs=_left(spec.kwargs, self._kwargs), wrappers=wrappers)

    def _hidden(self, spec: EnvSpec) -> Iterator[str]:
        yield from (f"kwargs.{name}" for name in spec.kwargs if name in self._kwargs)
        for position, wrapper in enumerate(spec.wrappers):
            names = self._wrappers.get(wrapper.name, ())
            yield from (f"wrappers[{position}].kwargs.{name}" for name in wrapper.kwargs if name in names)

    def _without(self, wrapper: Wrapper) -> Wrapper:
        return dataclasses.replace(wrapper, kwargs=_left(wrapper.kwargs, self._wrappers.get(wrapper.name, ())))


def _left(kwargs: Mapping[str, object], hidden: Collection[str]) -> dict[str, object]:
    return {name: value for name, value in kwargs.items() if name not in hidden}
