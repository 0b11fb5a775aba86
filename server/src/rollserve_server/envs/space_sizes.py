"""The size of spaces, which is bounded because every answer to `GetSampler` has the spaces of the environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollserve_server.envs.leaves import describe_space
from rollserve_server.errors import OverLimitError
from rollserve_wire.reasons import Reason
from rollserve_wire.spaces import space_to_proto

if TYPE_CHECKING:
    from gymnasium import Space

__all__ = ["check_space_sizes"]

_MAX_SPACE_BYTES = 1 << 20
"""Bytes of both spaces as messages. With `MAX_ENV_BYTES` and the state of 10,000 workers, an answer stays below the
4 MiB that clients accept by default."""


def check_space_sizes(observation_space: Space[Any], action_space: Space[Any]) -> None:
    """Raise OverLimitError if both spaces take more than 1 MiB; a bound that all elements share is one number."""
    size = sum(space_to_proto(describe_space(space)).ByteSize() for space in (observation_space, action_space))
    if size > _MAX_SPACE_BYTES:
        expected = f"an environment whose spaces take at most {_MAX_SPACE_BYTES} bytes"
        hint = "a bound that all elements of a Box share takes a few bytes"
        raise OverLimitError.of("id", expected=expected, got=size, hint=hint, reason=Reason.ENVIRONMENTS_TOO_LARGE)
