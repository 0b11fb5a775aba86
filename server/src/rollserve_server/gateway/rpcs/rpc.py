"""Entries of the table of RPCs, and bounds on how many RPCs are answered at a time."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from google.protobuf.message_factory import GetMessageClass

from rollserve_wire.v1 import sampler_service_pb2 as pb

if TYPE_CHECKING:
    import contextlib

    from google.protobuf.message import Message

    from rollserve_server.gateway.rpcs.open_rpc import OpenRpc
    from rollserve_server.identity import Scope

__all__ = ["SERVICE", "Bound", "Bounds", "Rpc"]

SERVICE = pb.DESCRIPTOR.services_by_name["SamplerService"]


class _Admitting(Protocol):
    """An admission, or places, which let RPCs run."""

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


@dataclass(frozen=True, eq=False)
class Rpc:
    """An RPC of the sampler service: who may call it, how its request is read, and what answers it.

    Attributes:
        name: its name.
        scope: what its client needs on the sampler.
        answer: method of the service that is called with the open RPC, the sampler, and the request as it is read. It
            is a coroutine that returns the response, or returns an iterator: of serialized responses, of responses, and
            of what a pool yields.
        read: returns the request for the pool, given the message and the paths that requests may name; None if the
            message itself is the request.
        parse: returns the message of a request; None for the generated class.
        field: field of the request that the message is; empty if it is the whole request.
        uses_sampler: whether the sampler has to exist, and keeps its lease until the RPC ends.
        is_of_server: whether the RPC is of no sampler, so that its client needs the scope on any one.
        further: yields further scopes that a message needs, each with what for; None for no message.
        size: which memory the request takes: `small` ones have 4 MiB at most.
        bound: bounds how many are answered at a time; None if nothing but the number of all open RPCs does.
        is_awaited: whether a server that stops waits for the RPC.
        why_late: what may take longer than the client's time for the RPC, which it then hears; empty for nothing.
    """

    name: str
    scope: Scope
    answer: Callable[..., Any]
    read: Callable[..., Any] | None = None
    parse: Callable[[bytes], Any] | None = None
    field: str = ""
    uses_sampler: bool = True
    is_of_server: bool = False
    further: Callable[[Any], Iterable[tuple[Scope, str]]] | None = None
    size: Literal["small", "update", "evaluation"] = "small"
    bound: Bound | None = None
    is_awaited: bool = True
    why_late: str = ""

    @functools.cached_property
    def request(self) -> type[Message]:
        """Class of its requests."""
        return GetMessageClass(SERVICE.methods_by_name[self.name].input_type)

    @functools.cached_property
    def response(self) -> type[Message]:
        """Class of its responses."""
        return GetMessageClass(SERVICE.methods_by_name[self.name].output_type)
