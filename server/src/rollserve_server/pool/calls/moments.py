"""Moments that a call's account has to have, for the environments that the call samples in."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from gymnasium import spaces

from rollserve_server.envs import leaves_of_space
from rollserve_server.errors import InvalidValueError
from rollserve_server.sampling import MomentsFormat

if TYPE_CHECKING:
    from rollserve_server.pool.interface.requests import SampleRequest
    from rollserve_server.sampling import EnvDescription

__all__ = ["with_moments"]

_MAX_ELEMENTS = 1 << 17
"""Largest number of elements that have moments: the account has 16 bytes for each, and a message may have 4 MiB."""


def with_moments(request: SampleRequest, description: EnvDescription) -> SampleRequest:
    """Return the request with the moments that its messages bring, if it asks for any.

    Raises:
        InvalidValueError: the observations have no leaves of numbers, or too many elements.
    """
    columns = request.messages.columns
    if columns is None or not (request.observation_moments or request.return_discount is not None):
        return request
    leaves: tuple[tuple[str, tuple[int, ...]], ...] = ()
    if request.observation_moments:
        leaves = tuple(
            (leaf.name, leaf.shape)
            for leaf in leaves_of_space(description.observation_space)
            if isinstance(leaf.space, spaces.Box | spaces.MultiBinary)
        )
        num_elements = sum(math.prod(shape) for _, shape in leaves)
        if not 0 < num_elements <= _MAX_ELEMENTS:
            expected = (
                f"false, unless observations have Box or MultiBinary leaves of 1 to {_MAX_ELEMENTS} elements in all"
            )
            got = f"true, and {num_elements} elements"
            raise InvalidValueError.of("options.observation_moments", expected=expected, got=got)
    columns = dataclasses.replace(columns, moments=MomentsFormat(leaves, request.return_discount))
    return dataclasses.replace(request, messages=dataclasses.replace(request.messages, columns=columns))
