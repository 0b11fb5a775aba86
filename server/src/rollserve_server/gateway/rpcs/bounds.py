"""Bounds: how many RPCs of a kind are worked on at a time, of all clients and of each."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import contextlib

    from rollserve_server.gateway.rpcs.open_rpc import OpenRpc

__all__ = ["Bound", "Bounds"]


class _Admitting(Protocol):
    """What lets RPCs run: an admission, or places."""

    async def admit(self, stack: contextlib.ExitStack, rpc: OpenRpc, /) -> None:
        """Wait until the RPC may run, which it does until the stack is closed; raise OverLimitError if it may not."""
        ...


@dataclass(frozen=True, eq=False)
class Bound:
    """A bound that RPCs share.

    Attributes:
        make: returns what lets them run.
        per_sampler: whether each sampler has one of its own.
    """

    make: Callable[[], _Admitting]
    per_sampler: bool = False


class Bounds:
    """The bounds of a server, made when they are first needed."""

    def __init__(self, made: Mapping[Bound, _Admitting]) -> None:
        """Start with bounds that depend on settings."""
        self._made = dict(made)
        self._of_samplers: weakref.WeakKeyDictionary[object, dict[Bound, _Admitting]] = weakref.WeakKeyDictionary()

    async def admit(self, bound: Bound, sampler: object, rpc: OpenRpc) -> None:
        """Wait until an RPC of a sampler may run, which it does until it ends.

        Raises:
            OverLimitError: too many run or wait, of the same client or in all.
        """
        made = self._of_samplers.setdefault(sampler, {}) if bound.per_sampler else self._made
        if bound not in made:
            made[bound] = bound.make()
        await made[bound].admit(rpc.held, rpc)
