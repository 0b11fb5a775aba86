"""Arguments of environments that clients do not get to see."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from rollserve_server.envs import requested

if TYPE_CHECKING:
    from rollserve_wire.environments import EnvSpec, Wrapper

__all__ = ["PrivateArguments"]


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
