"""The row service: streams of hosts, on which the gateway passes on what a worker and its host say to each other."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

import grpc

from rollserve_server.errors import InvalidValueError
from rollserve_server.fields import in_field
from rollserve_server.futures import in_task
from rollserve_server.gateway.relay import read_message, write_message
from rollserve_server.gateway.requests.parsing import parse, parse_unchecked
from rollserve_wire.rows.v1 import row_service_pb2, rows_pb2

if TYPE_CHECKING:
    from rollserve_server.gateway.relay import Relay, Seat
    from rollserve_server.gateway.requests.intake import Intake
    from rollserve_server.gateway.rpcs.open_rpc import OpenRpc
    from rollserve_server.gateway.rpcs.open_rpcs import OpenRpcs

__all__ = ["ROW_SERVICE", "SERVE_RPC", "RowService"]

ROW_SERVICE: str = row_service_pb2.DESCRIPTOR.services_by_name["RowService"].full_name
SERVE_RPC = "ServeRows"
"""The RPC of the service."""
_PROTOCOL_VERSION = 1

_log = logging.getLogger(__name__)


class RowService:
    """`rollserve.rows.v1.RowService`; see `protos/rollserve/rows/v1/row_service.proto`."""

    def __init__(self, relay: Relay, rpcs: OpenRpcs, intake: Intake, max_bytes: int) -> None:
        """Prepare to take hosts.

        Args:
            relay: offers their seats to workers.
            rpcs: registry of open RPCs.
            intake: receives requests.
            max_bytes: size of the largest response of a host.
        """
        self._relay, self._rpcs, self._intake, self._max_bytes = relay, rpcs, intake, max_bytes

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handler that routes the RPC to its method."""
        handler = self._rpcs.stream_handler(SERVE_RPC, self._serve, is_awaited=False, limits_unread=False)
        return grpc.method_handlers_generic_handler(ROW_SERVICE, {SERVE_RPC: handler})

    async def _serve(self, rpc: OpenRpc) -> None:
        """Have a host serve one worker. gRPC cancels the task if the host is gone."""
        first = parse(row_service_pb2.ServeRowsRequest, await self._intake.small_request(rpc))
        with self._relay.offering(first.name, _hello(first.message)) as seat:
            fields = {"host": first.name, "peer": rpc.connection}
            _log.info("host connected", extra=fields)
            try:
                await rpc.write(row_service_pb2.ServeRowsResponse().SerializeToString())
                await self._pass_on(rpc, seat)
            finally:
                _log.info("host disconnected", extra=fields)

    async def _pass_on(self, rpc: OpenRpc, seat: Seat) -> None:
        """Pass on what the worker that takes a seat and its host say, until either has left."""
        async with in_task(self._pass_responses(rpc, seat)) as responses:
            await asyncio.wait((seat.worker, responses), return_when=asyncio.FIRST_COMPLETED)
            if seat.worker.done():
                async with in_task(self._pass_requests(rpc, seat)) as requests:
                    await asyncio.wait({requests, responses}, return_when=asyncio.FIRST_COMPLETED)
                    if requests.done():
                        requests.result()
            if responses.done():
                responses.result()

    async def _pass_requests(self, rpc: OpenRpc, seat: Seat) -> None:
        """Pass the requests of a worker on to its host, until the worker has left."""
        reader, _ = seat.worker.result()
        with contextlib.suppress(EOFError, OSError):
            while True:
                message = await read_message(reader)
                await rpc.write(row_service_pb2.ServeRowsResponse(message=message).SerializeToString())

    async def _pass_responses(self, rpc: OpenRpc, seat: Seat) -> None:
        """Pass the responses of a host on to its worker, until the host has ended its stream.

        Raises:
            InvalidValueError: the host has sent one without being asked, or something else.
            OverLimitError: it has sent too much.
        """
        while (data := await self._intake.later_request(rpc, self._max_bytes)) is not None:
            if not seat.worker.done():
                expected, got = "no response before there is a request", f"{len(data)} bytes"
                raise InvalidValueError.of("message", expected=expected, got=got)
            _, writer = seat.worker.result()
            write_message(writer, parse_unchecked(row_service_pb2.ServeRowsRequest, data).message)
            with contextlib.suppress(OSError):  # the worker has left
                await writer.drain()


def _hello(data: bytes) -> rows_pb2.Hello:
    """Return the hello of a host; raise InvalidValueError for another version of the protocol, or other bytes."""
    with in_field("message"):
        hello = parse(rows_pb2.Hello, data)
    if hello.protocol_version != _PROTOCOL_VERSION:
        got = hello.protocol_version
        raise InvalidValueError.of("message.protocol_version", expected=_PROTOCOL_VERSION, got=got)
    return hello
