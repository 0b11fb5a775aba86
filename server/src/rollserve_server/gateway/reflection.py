"""gRPC's reflection service, for clients that have no protos. The library answers, within bounds."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Collection
from typing import TYPE_CHECKING, Any

import grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from rollserve_server.admission import ConnectionAdmission
from rollserve_server.gateway.requests.parsing import parse
from rollserve_server.gateway.rpcs.handlers import stream_handler

if TYPE_CHECKING:
    from rollserve_server.gateway.requests.intake import Intake
    from rollserve_server.gateway.rpcs.open_rpc import OpenRpc
    from rollserve_server.gateway.rpcs.open_rpcs import OpenRpcs

__all__ = ["REFLECTION_SERVICE", "Reflection"]

REFLECTION_SERVICE: str = reflection.SERVICE_NAME

_MAX_ANSWERS, _MAX_CONNECTION_ANSWERS, _PATIENCE_SECONDS, _MAX_WAITING = 8, 2, 5.0, 64
"""Answers that clients have not read at a time, in all and by connection; how long others wait for a client that does
not read its answer; and how many wait."""


class Reflection:
    """`grpc.reflection.v1alpha.ServerReflection`."""

    def __init__(self, services: Collection[str], rpcs: OpenRpcs, intake: Intake) -> None:
        """Prepare to describe services.

        Args:
            services: names of the services.
            rpcs: registry of open RPCs.
            intake: receives requests.
        """
        self._library = reflection.aio.ReflectionServicer(services)
        self._rpcs = rpcs
        self._intake = intake
        self._answer_admission = ConnectionAdmission(
            _MAX_ANSWERS, _MAX_CONNECTION_ANSWERS, _PATIENCE_SECONDS, max_waiting=_MAX_WAITING
        )

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handler that routes RPCs to the methods."""
        handler = stream_handler(self._rpcs, self._answer_all, is_awaited=False)
        return grpc.method_handlers_generic_handler(REFLECTION_SERVICE, {"ServerReflectionInfo": handler})

    async def _answer_all(self, rpc: OpenRpc) -> AsyncGenerator[bytes, None]:
        while (data := await self._intake.next_query(rpc)) is not None:
            query = parse(reflection_pb2.ServerReflectionRequest, data)
            async with contextlib.AsyncExitStack() as stack:
                await self._answer_admission.admit(stack, rpc)
                yield await self._answer(query)

    async def _answer(self, query: Any) -> bytes:
        """Return the library's answer to one query."""

        async def queries() -> AsyncGenerator[Any, None]:
            yield query

        async with contextlib.aclosing(self._library.ServerReflectionInfo(queries(), None)) as answers:
            return bytes((await anext(answers)).SerializeToString())
