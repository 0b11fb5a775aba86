"""RPCs between gRPC and the server's own handlers: recorded for the kit, or answered by a script."""

from __future__ import annotations

import asyncio
import base64
import json
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from rollserve_server.testing.rpcs import WrappedRpcs
from rollserve_wire.v1 import sampler_service_pb2 as pb

__all__ = ["RpcRecorder"]

_MAX_RESPONSE_BYTES = 1 << 20
"""Limit of the responses that one RPC's record holds: the longest ones are not needed, and not small."""


class RpcRecorder(WrappedRpcs):
    """Keeps what each RPC of the sampler service received and sent, and answers some from scripts.

    A record is an object as JSON has it: `rpc`; `requests` and `responses` in base64; `status`, the name of gRPC's
    status, or `CANCELLED` if the client ended the RPC; `details`; `trailing`, the metadata, with bytes in base64.

    A script answers the next RPC of its name in place of the server: `{"rpc": "GetSampler", "steps": […]}`. Its steps
    are `{"send": base64}`, `{"wait": seconds}`, and `{"abort": {"status", "details", "trailing"}}`. With `needs`, the
    names of truth values that the request's options must have, the RPC is aborted with UNIMPLEMENTED without them.
    """

    def __init__(self) -> None:
        self._records: list[dict[str, Any]] = []
        self._scripts: deque[dict[str, Any]] = deque()

    async def add_script(self, script: str) -> str:
        """Add a script, as JSON has it."""
        self._scripts.append(json.loads(script))
        return ""

    async def report(self, _: str) -> str:
        """Return all records, as JSON has them."""
        return json.dumps(self._records)

    async def forget(self, _: str) -> str:
        """Drop all records and scripts."""
        self._records.clear()
        self._scripts.clear()
        return ""

    async def answer(
        self, name: str, handle: Callable[[object, Any], Awaitable[bytes]], requests: object, context: Any
    ) -> bytes:
        """Return the response of a script or of the server, and record it."""
        async with self._recorded(name, context) as recorded:
            script = self._next_script(name)
            if script is not None:
                return await _play(script, recorded)
            response = await handle(requests, recorded)
            recorded.keep(response)
            return response

    async def stream(
        self, name: str, handle: Callable[[object, Any], Awaitable[None]], requests: object, context: Any
    ) -> None:
        """Send the responses of a script or of the server, and record them."""
        async with self._recorded(name, context) as recorded:
            script = self._next_script(name)
            if script is not None:
                await _play(script, recorded)
            else:
                await handle(requests, recorded)

    def _recorded(self, name: str, context: Any) -> _RecordedContext:
        recorded = _RecordedContext(name, context)
        self._records.append(recorded.record)
        return recorded

    def _next_script(self, name: str) -> dict[str, Any] | None:
        for script in self._scripts:
            if script["rpc"] == name:
                self._scripts.remove(script)
                return script
        return None


class _RecordedContext:
    """An RPC as gRPC has it, with a record of what it receives and sends."""

    def __init__(self, name: str, context: Any) -> None:
        self.record: dict[str, Any] = {"rpc": name, "requests": [], "responses": [], "status": "", "details": ""}
        self._context = context
        self._num_bytes = 0

    async def __aenter__(self) -> _RecordedContext:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if not self.record["status"]:
            self.record["status"] = (
                "CANCELLED" if kind is asyncio.CancelledError else "OK" if kind is None else "UNKNOWN"
            )

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._context, attribute)

    def keep(self, response: bytes) -> None:
        self._num_bytes += len(response)
        if self._num_bytes <= _MAX_RESPONSE_BYTES:
            self.record["responses"].append(base64.b64encode(response).decode())

    async def read(self) -> Any:
        request = await self._context.read()
        if isinstance(request, bytes):
            self.record["requests"].append(base64.b64encode(request).decode())
        return request

    async def write(self, message: bytes) -> None:
        self.keep(message)
        await self._context.write(message)

    async def abort(
        self, code: grpc.StatusCode = grpc.StatusCode.UNKNOWN, details: str = "", metadata: Any = ()
    ) -> None:
        trailing = {
            name: base64.b64encode(value).decode() if isinstance(value, bytes) else value for name, value in metadata
        }
        self.record |= {"status": code.name, "details": details, "trailing": trailing}
        await self._context.abort(code, details, metadata)


async def _play(script: dict[str, Any], context: _RecordedContext) -> bytes:
    """Play a script as the answer of an RPC; return the response of one that is not a stream."""
    request = await context.read()
    if script.get("needs"):
        options = pb.ObtainSamplesRequest.FromString(request).options
        if missing := [name for name in script["needs"] if not getattr(options, name)]:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, f"the request lacks {' and '.join(missing)}")
    for step in script["steps"]:
        if "wait" in step:
            await asyncio.sleep(step["wait"])
        elif "send" in step:
            message = base64.b64decode(step["send"])
            if script["rpc"] == "GetSampler":
                return message
            await context.write(message)
        else:
            abort = step["abort"]
            metadata = tuple(
                (name, base64.b64decode(value) if name.endswith("-bin") else value)
                for name, value in abort.get("trailing", {}).items()
            )
            await context.abort(grpc.StatusCode[abort["status"]], abort["details"], metadata)
    return b""
