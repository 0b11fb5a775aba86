"""Calls that save and restore a sampler."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollserve_wire.checks import check_type
from rollserve_wire.v1 import samplers_pb2 as pb

if TYPE_CHECKING:
    from rollserve._calls.own_versions import OwnVersions

__all__ = ["read_saved", "read_saved_async", "restore_request"]


def restore_request(
    sampler: str, own_versions: OwnVersions, saved: bytes | str | PathLike[str]
) -> pb.RestoreSamplerRequest:
    """Return the request that restores a sampler; for the arguments, see `rollserve.Sampler.restore`.

    Raises:
        TypeError: neither bytes nor a path.
        OSError: the file cannot be read.
    """
    check_type("saved", saved, bytes | str | PathLike, "the bytes of a saved sampler, or a path")
    data = saved if isinstance(saved, bytes) else Path(saved).read_bytes()
    return pb.RestoreSamplerRequest(sampler=sampler, data=data, client_id=own_versions.client_id)


def read_saved(method: Callable[..., Any]) -> Callable[..., bytes]:
    """Wrap a method that streams a saved sampler so that it returns all of it."""

    def read(*arguments: Any, **options: Any) -> bytes:
        return b"".join(response.data for response in method(*arguments, **options))

    return read


def read_saved_async(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method for asyncio that streams a saved sampler so that it returns all of it."""

    async def read(*arguments: Any, **options: Any) -> bytes:
        return b"".join([response.data async for response in method(*arguments, **options)])

    return read
