"""An entry of the table of RPCs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from google.protobuf.message_factory import GetMessageClass

from rollserve_wire.v1 import sampler_service_pb2 as pb

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from rollserve_server.gateway.rpcs.bounds import Bound
    from rollserve_server.identity import Scope

__all__ = ["SERVICE", "Rpc"]

SERVICE = pb.DESCRIPTOR.services_by_name["SamplerService"]


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
