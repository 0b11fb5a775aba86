"""gRPC's reflection service, for clients that have no protos. The library answers, within bounds.

The library has `v1alpha` only. `v1`, which newer clients ask for first, differs from it in the name of its package
alone, so that requests and responses have the same bytes.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Collection, Sequence
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf import descriptor_pool, text_format
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_reflection.v1alpha import reflection, reflection_pb2

from rollserve_server.admission import ConnectionAdmission
from rollserve_server.gateway.requests.parsing import parse

if TYPE_CHECKING:
    from rollserve_server.gateway.requests.intake import Intake
    from rollserve_server.gateway.rpcs.open_rpc import OpenRpc
    from rollserve_server.gateway.rpcs.open_rpcs import OpenRpcs

__all__ = ["REFLECTION_RPC", "REFLECTION_SERVICES", "Reflection"]

_V1ALPHA: str = reflection.SERVICE_NAME
_V1 = "grpc.reflection.v1.ServerReflection"
REFLECTION_SERVICES = (_V1, _V1ALPHA)
"""Names under which reflection is served."""
REFLECTION_RPC = "ServerReflectionInfo"
"""The RPC of these services."""

_MAX_ANSWERS, _MAX_CONNECTION_ANSWERS, _PATIENCE_SECONDS, _MAX_WAITING = 8, 2, 5.0, 64
"""Answers that clients have not read at a time, in all and by connection; how long others wait for a client that does
not read its answer; and how many wait."""


class Reflection:
    """`grpc.reflection.v1.ServerReflection`, and the same of `v1alpha`."""

    def __init__(self, services: Collection[str], rpcs: OpenRpcs, intake: Intake) -> None:
        """Prepare to describe services.

        Args:
            services: names of the services.
            rpcs: registry of open RPCs.
            intake: receives requests.
        """
        _describe_v1()
        self._library = reflection.aio.ReflectionServicer(services)
        self._rpcs = rpcs
        self._intake = intake
        self._answer_admission = ConnectionAdmission(
            _MAX_ANSWERS, _MAX_CONNECTION_ANSWERS, _PATIENCE_SECONDS, max_waiting=_MAX_WAITING
        )

    def handlers(self) -> Sequence[grpc.GenericRpcHandler]:
        """Return the handlers that route RPCs to the methods."""
        methods = {REFLECTION_RPC: self._rpcs.stream_handler(REFLECTION_RPC, self._answer_all, is_awaited=False)}
        return [grpc.method_handlers_generic_handler(service, methods) for service in REFLECTION_SERVICES]

    async def _answer_all(self, rpc: OpenRpc) -> None:
        while (data := await self._intake.next_query(rpc)) is not None:
            query = parse(reflection_pb2.ServerReflectionRequest, data)
            async with contextlib.AsyncExitStack() as stack:
                await self._answer_admission.admit(stack, rpc)
                await rpc.write(await self._answer(query))

    async def _answer(self, query: Any) -> bytes:
        """Return the library's answer to one query."""

        async def queries() -> AsyncGenerator[Any, None]:
            yield query

        async with contextlib.aclosing(self._library.ServerReflectionInfo(queries(), None)) as answers:
            return bytes((await anext(answers)).SerializeToString())


def _describe_v1() -> None:
    """Have the library describe the service of `v1`, too."""
    pool: Any = descriptor_pool.Default()
    try:
        pool.FindServiceByName(_V1)
    except KeyError:
        v1alpha = FileDescriptorProto()
        reflection_pb2.DESCRIPTOR.CopyToProto(v1alpha)
        renamed = str(v1alpha).replace("grpc.reflection.v1alpha", "grpc.reflection.v1")
        v1 = text_format.Parse(renamed, FileDescriptorProto())
        v1.name = "grpc/reflection/v1/reflection.proto"
        v1.ClearField("options")  # `deprecated`, and names for Java
        pool.AddSerializedFile(v1.SerializeToString())
