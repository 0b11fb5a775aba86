"""RPCs that fail, break or are slow on demand, between gRPC and the server's own handlers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from rollserve._calls.responses import responses_of
from rollserve_server.errors import InvalidValueError, StoppingError
from rollserve_server.testing.faults import BreakStream, Delay, Faults, RefuseUpdate
from rollserve_server.testing.wrapped_rpcs import WrappedRpcs
from rollserve_wire.protobuf import keys_of
from rollserve_wire.reasons import Reason
from rollserve_wire.v1 import sampler_service_pb2 as pb

__all__ = ["FaultyRpcs"]

_UPDATES = {"UpdateAgent": "agent", "UpdateEnv": "environment"}
_BATCH_STREAMS = ("ObtainSamples", "ObtainExactEpisodes", "StreamSamples")
_SAMPLING: dict[str, type[pb.ObtainSamplesRequest | pb.ObtainExactEpisodesRequest]] = {
    "ObtainSamples": pb.ObtainSamplesRequest,
    "ObtainExactEpisodes": pb.ObtainExactEpisodesRequest,
}
_REASONS = {"agent": Reason.AGENT_REFUSED, "environment": Reason.ENV_REFUSED}
_KEYS = keys_of(pb.ObtainSamplesResponse.DESCRIPTOR)
_WITH_STEPS, _ACCOUNT = (_KEYS["batch"], _KEYS["shared"]), _KEYS["account"]
_ASKED = "a test has asked for it"


class FaultyRpcs(WrappedRpcs):
    """Makes the faults of the sampler service's RPCs."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    async def _answer(
        self, name: str, handle: Callable[[object, Any], Awaitable[bytes]], requests: object, context: Any
    ) -> bytes:
        await self._delay(name)
        return await handle(requests, _FaultyContext(context, name, self._faults))

    async def _stream(
        self, name: str, handle: Callable[[object, Any], Awaitable[None]], requests: object, context: Any
    ) -> None:
        await self._delay(name)
        faulty = _FaultyContext(context, name, self._faults)
        # What was written in the background may be the last for long, so that nobody notices a broken stream.
        handling, breaking = asyncio.ensure_future(handle(requests, faulty)), asyncio.create_task(faulty.broken.wait())
        try:
            await asyncio.wait({handling, breaking}, return_when=asyncio.FIRST_COMPLETED)
            if not faulty.is_broken:
                await handling
        finally:
            handling.cancel()
            breaking.cancel()
            await asyncio.wait({handling})
        if faulty.is_broken and not faulty.is_aborted:
            await faulty.abort()

    async def _delay(self, name: str) -> None:
        fault = self._faults.take(Delay, lambda fault: fault.rpc in ("", name))
        if fault is not None:
            await asyncio.sleep(fault.seconds)


class _FaultyContext:
    """An RPC as gRPC has it, whose requests may be refused, and whose stream may break.

    Attributes:
        broken: set once the stream is broken.
        is_aborted: whether the RPC was aborted, which gRPC allows once.
    """

    def __init__(self, context: Any, name: str, faults: Faults) -> None:
        self.broken = asyncio.Event()
        self.is_aborted = False
        self._context = context
        self._name = name
        self._faults = faults
        self._num_messages = 0

    @property
    def is_broken(self) -> bool:
        """Whether the stream is broken."""
        return self.broken.is_set()

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._context, attribute)

    async def read(self) -> Any:
        request = await self._context.read()
        if self._faults.waits(RefuseUpdate):
            update = _update_in(self._name, request)
            if self._faults.take(RefuseUpdate, lambda fault: fault.update == update):
                raise InvalidValueError(f"the {update} is refused: {_ASKED}", reason=_REASONS[update])
        return request

    async def write(self, message: bytes) -> None:
        if self._name not in _BATCH_STREAMS:
            await self._context.write(message)
        elif self.is_broken or self._faults.waits(BreakStream):
            for response in responses_of(message):
                await self._write_unless_broken(bytes(response))
        else:
            self._num_messages += sum(response[0] in _WITH_STEPS for response in responses_of(message))
            await self._context.write(message)

    async def _write_unless_broken(self, response: bytes) -> None:
        has_steps = response[0] in _WITH_STEPS
        is_last = response[0] == _ACCOUNT
        if not self.is_broken and (has_steps or is_last):
            due = self._faults.take(BreakStream, lambda fault: is_last or self._num_messages >= fault.after_messages)
            if due is not None:
                self.broken.set()
        if self.is_broken:
            raise StoppingError(f"the stream is broken: {_ASKED}")
        self._num_messages += has_steps
        await self._context.write(response)

    async def abort(
        self, code: grpc.StatusCode = grpc.StatusCode.UNKNOWN, details: str = "", metadata: Any = ()
    ) -> None:
        if self.is_broken:  # a lost connection has no reason either
            code, details, metadata = grpc.StatusCode.UNAVAILABLE, f"the stream is broken: {_ASKED}", ()
        self.is_aborted = True
        await self._context.abort(code, details, metadata)


def _update_in(name: str, request: Any) -> str:
    """Return what a request updates; empty for nothing."""
    if name in _SAMPLING and isinstance(request, bytes):
        sampling = _SAMPLING[name].FromString(request)
        return "agent" if sampling.options.HasField("agent_update") else ""
    return _UPDATES.get(name, "")
