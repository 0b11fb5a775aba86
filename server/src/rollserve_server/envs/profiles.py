"""Environment profiles: environments that the operator declares, and that clients request by name."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from rollserve_server.envs.host_starts import HostStart
from rollserve_server.errors import InvalidValueError, NotAllowedError, NotFoundError
from rollserve_wire.environments import EnvChange, EnvSpec, Wrapper
from rollserve_wire.reasons import Reason
from rollserve_wire.transforms import transform_from_json

if TYPE_CHECKING:
    from rollserve_server.settings import ProfileSetting

__all__ = ["ProfileDescription", "ProfileEnv", "Profiles", "check_not_free", "of_profile", "requested"]

_PREFIX = "profile:"
_MAX_ARGUMENT_BYTES = 64 << 10
"""Largest size of the arguments of a request, as JSON: the time that a check takes depends on it."""


class ProfileDescription(NamedTuple):
    """A profile as clients see it.

    Attributes:
        name: name of the profile.
        description: the operator's text about it.
        schema_json: JSON Schema of the arguments that clients may give.
    """

    name: str
    description: str
    schema_json: str


@dataclass(frozen=True)
class ProfileEnv(EnvSpec):
    """The environment that a profile makes of a request's arguments, with all that the operator has set.

    Attributes:
        profile: name of the profile.
        arguments: arguments that clients have given.
        host: how a worker starts the host of the environment; None for an environment that it makes itself.
    """

    profile: str = ""
    arguments: Mapping[str, object] = field(default_factory=dict)
    host: HostStart | None = None


class Profiles:
    """The environment profiles of a server."""

    def __init__(self, profiles: Mapping[str, ProfileSetting]) -> None:
        """Take the operator's profiles by their names."""
        from rollserve_server.argument_schemas import ArgumentSchema  # workers and their children need none

        self._profiles = profiles
        self._schemas = {name: ArgumentSchema(profile.arguments) for name, profile in profiles.items()}

    @property
    def descriptions(self) -> Sequence[ProfileDescription]:
        """The profiles as clients see them, in the operator's order."""
        return [
            ProfileDescription(name, profile.description, json.dumps(profile.arguments))
            for name, profile in self._profiles.items()
        ]

    def specs(self) -> Iterator[tuple[str, ProfileEnv]]:
        """Yield the name and the environment of each profile, without any argument of a client."""
        for name in self._profiles:
            yield name, self._env(name, {})

    def resolved(self, spec: EnvSpec) -> EnvSpec:
        """Return the environment of the profile that an id names, with the arguments; any other spec as it is.

        Raises:
            NotFoundError: there is no such profile.
            InvalidValueError: the schema does not accept the arguments, or the spec has more than arguments.
        """
        if isinstance(spec, ProfileEnv) or not _is_profile(spec):
            return spec
        for name, value in (
            ("wrappers", spec.wrappers),
            ("transforms", spec.transforms),
            ("task", spec.task),
            ("reset_options_json", spec.reset_options),
            ("vectorization", spec.vectorization),
            ("row_count", spec.num_rows),
            ("episodes_per_row", spec.num_episodes_per_row),
            ("text_info_bytes", spec.text_info_bytes),
            ("multi_agent", spec.multi_agent),
            ("global_state", spec.global_state),
        ):
            _check_none(name, value)
        return self._made(spec.id.removeprefix(_PREFIX), spec.kwargs)

    def changed(self, spec: EnvSpec, change: EnvChange) -> EnvSpec:
        """Return an environment after a change; a profile accepts other arguments only.

        Raises:
            NotFoundError, InvalidValueError: as of `resolved`.
        """
        if not isinstance(spec, ProfileEnv):
            return change.applied_to(spec)
        _check_none("task", change.task)
        _check_none("reset_options_json", change.reset_options)
        return self._made(spec.profile, {**spec.arguments, **change.kwargs})

    def _made(self, name: str, arguments: Mapping[str, object]) -> ProfileEnv:
        profile = self._profiles.get(name)
        if profile is None:
            known = ", ".join(repr(_PREFIX + each) for each in self._profiles) or "none, because the server has none"
            got = repr(_PREFIX + name)
            raise NotFoundError.of("id", expected=f"a profile of {known}", got=got, reason=Reason.PROFILE_NOT_FOUND)
        size = len(json.dumps(arguments))
        if size > _MAX_ARGUMENT_BYTES:
            raise InvalidValueError.of("kwargs_json", expected=f"at most {_MAX_ARGUMENT_BYTES} bytes", got=size)
        schema = self._schemas[name]
        defaults = {key: value for key, value in profile.env_kwargs.items() if key in schema.names}
        violation = schema.violation({**defaults, **arguments})
        if violation is not None:
            field = f"kwargs_json.{violation.path}" if violation.path else "kwargs_json"
            raise InvalidValueError.of(field, expected=violation.expected, got=violation.got)
        return self._env(name, arguments)

    def _env(self, name: str, arguments: Mapping[str, object]) -> ProfileEnv:
        profile = self._profiles[name]
        return ProfileEnv(
            profile.env,
            {**profile.env_kwargs, **arguments},
            tuple(Wrapper(wrapper.name, wrapper.kwargs) for wrapper in profile.wrappers),
            vectorization=None if profile.vectorization == "auto" else profile.vectorization,
            num_rows=profile.rows,
            num_episodes_per_row=profile.episodes_per_row,
            transforms=tuple(map(transform_from_json, profile.transforms)),
            text_info_bytes=profile.text_info_bytes,
            multi_agent=profile.multi_agent,
            global_state=profile.global_state,
            profile=name,
            arguments=dict(arguments),
            host=_host(profile) if profile.has_host else None,
        )


def _host(profile: ProfileSetting) -> HostStart:
    return HostStart(profile.command, profile.python, profile.packages, profile.sandbox)


def _is_profile(spec: EnvSpec) -> bool:
    """Whether a spec is of a profile, or requests one."""
    return isinstance(spec, ProfileEnv) or spec.id.startswith(_PREFIX)


def requested(spec: EnvSpec) -> EnvSpec:
    """Return a spec as a client would request it: of a profile, the name and the arguments alone."""
    return EnvSpec(_PREFIX + spec.profile, spec.arguments) if isinstance(spec, ProfileEnv) else spec


def of_profile(spec: EnvSpec, made: EnvSpec, host: HostStart | None) -> ProfileEnv:
    """Return the environment of a profile, given what `requested` returns for it, and what the profile has made."""
    return ProfileEnv(**vars(made), profile=spec.id.removeprefix(_PREFIX), arguments=spec.kwargs, host=host)


def check_not_free(spec: EnvSpec) -> None:
    """Raise NotAllowedError if an environment is of no profile."""
    if not _is_profile(spec):
        raise NotAllowedError.of(
            "id",
            expected=f"an environment of a profile, such as '{_PREFIX}NAME', because the server allows no others",
            got=repr(spec.id),
            reason=Reason.PROFILE_REQUIRED,
        )


def _check_none(field: str, value: object) -> None:
    """Raise InvalidValueError if a request for a profile has a value that belongs to the operator."""
    if value:
        expected = "none for an environment of a profile, which takes arguments (kwargs) alone"
        raise InvalidValueError.of(field, expected=expected, got="one")
