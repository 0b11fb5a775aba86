"""Moments that a call's account has to have, for the environments that the call samples in."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from gymnasium import spaces

from rollserve_server.agents import PolicySet, spaces_of_policies
from rollserve_server.envs import leaves_of_space
from rollserve_server.errors import InvalidValueError
from rollserve_server.sampling import MomentsFormat

if TYPE_CHECKING:
    from gymnasium import Space

    from rollserve_server.agents import AgentSpec
    from rollserve_server.pool.interface.requests import SampleRequest
    from rollserve_server.sampling import EnvDescription

__all__ = ["with_moments"]

_MAX_ELEMENTS = 1 << 17
"""Largest number of elements that have moments: the account has 16 bytes for each, and a message may have 4 MiB."""


def with_moments(request: SampleRequest, description: EnvDescription, agent: AgentSpec) -> SampleRequest:
    """Return the request with the moments that its messages bring, if it asks for any.

    Args:
        request: the request.
        description: the environment.
        agent: the agent that acts; policies by name have moments of their own, those of them that are delivered.

    Raises:
        InvalidValueError: the observations have no leaves of numbers, or too many elements.
    """
    columns = request.messages.columns
    if columns is None or not (request.observation_moments or request.return_discount is not None):
        return request
    of_policies: dict[str, Space[Any]] = {"": description.observation_space}
    if isinstance(agent, PolicySet):
        found = spaces_of_policies(agent, description.agents, description.observation_space)
        of_policies = {name: found[name] for name in sorted(found) if name in (columns.policies or found)}
    forms = [
        MomentsFormat(_leaves(space) if request.observation_moments else (), request.return_discount, name)
        for name, space in of_policies.items()
    ]
    num_elements = sum(math.prod(shape) for form in forms for _, shape in form.leaves)
    if request.observation_moments and not 0 < num_elements <= _MAX_ELEMENTS:
        expected = f"false, unless observations have Box or MultiBinary leaves of 1 to {_MAX_ELEMENTS} elements in all"
        got = f"true, and {num_elements} elements"
        raise InvalidValueError.of("options.observation_moments", expected=expected, got=got)
    columns = dataclasses.replace(columns, moments=tuple(forms))
    return dataclasses.replace(request, messages=dataclasses.replace(request.messages, columns=columns))


def _leaves(space: Space[Any]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return name and shape of the leaves that have moments."""
    leaves = leaves_of_space(space)
    return tuple((leaf.name, leaf.shape) for leaf in leaves if isinstance(leaf.space, spaces.Box | spaces.MultiBinary))
