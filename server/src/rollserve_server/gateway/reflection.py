"""gRPC's reflection: what a client that has no protos asks for. The library answers, within bounds."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Collection
from typing import TYPE_CHECKING, Any

import grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from rollserve_server.admission import ConnectionAdmission
from rollserve_server.gateway.requests.parsing import parsed

if TYPE_CHECKING:
    from rollserve_server.gateway.requests.intake import Intake
    from rollserve_server.gateway.rpcs import OpenRpcs

__all__ = ["REFLECTION_SERVICE", "Reflection"]

REFLECTION_SERVICE: str = reflection.SERVICE_NAME

_Context = Any  # grpc.aio's is generic in the stubs only
_MOST_ANSWERS, _MOST_OF_CONNECTION, _PATIENCE_SECONDS, _MOST_WAITING = 8, 2, 5.0, 64
"""How many answers are there at a time, in all and of a connection, until their clients have taken them."""


class Reflection:
    """`grpc.reflection.v1alpha.ServerReflection`."""

    def __init__(self, services: Collection[str], rpcs: OpenRpcs, intake: Intake) -> None:
        """Tells of these services.

        Args:
            services: their names.
            rpcs: keeps the RPCs.
            intake: receives requests.
        """
        self._library = reflection.aio.ReflectionServicer(services)
        self._rpcs = rpcs
        self._intake = intake
        self._answer_admission = ConnectionAdmission(
            _MOST_ANSWERS, _MOST_OF_CONNECTION, _PATIENCE_SECONDS, max_waiting=_MOST_WAITING
        )

    def handler(self) -> grpc.GenericRpcHandler:
        """What a server needs to route calls here."""
        handler: grpc.RpcMethodHandler[Any, Any] = grpc.stream_stream_rpc_method_handler(self._write, None, None)
        return grpc.method_handlers_generic_handler(REFLECTION_SERVICE, {"ServerReflectionInfo": handler})

    async def _write(self, _: object, context: _Context) -> None:
        async with self._rpcs.open(context, is_awaited=False) as rpc:
            self._rpcs.check_stuck()
            while (data := await self._intake.reflection(rpc)) is not None:
                request = parsed(reflection_pb2.ServerReflectionRequest, data)
                async with contextlib.AsyncExitStack() as stack:
                    await self._answer_admission.admit(stack, rpc)
                    await rpc.write(await self._answer(request))

    async def _answer(self, request: Any) -> bytes:
        """What the library answers to one request."""

        async def only() -> AsyncGenerator[Any, None]:
            yield request

        async with contextlib.aclosing(self._library.ServerReflectionInfo(only(), None)) as answers:
            return bytes((await anext(answers)).SerializeToString())
