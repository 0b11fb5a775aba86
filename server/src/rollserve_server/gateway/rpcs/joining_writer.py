"""The writer of a stream: small responses that are ready at about the same time are sent as one message."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from rollserve_server.futures import in_background
from rollserve_wire.protobuf import keys_of, length_delimited
from rollserve_wire.v1.sampler_service_pb2 import JoinedResponses, ObtainSamplesResponse

if TYPE_CHECKING:
    from rollserve_server.gateway.rpcs.open_rpc import OpenRpc

__all__ = ["JoiningWriter"]

_MAX_PART_BYTES, _MAX_JOINED_BYTES = 64 << 10, 256 << 10
_MAX_KEY_BYTES = 6  # key and size of a part, and of all of them
_MAX_SECONDS = 0.01
"""How long a response waits for others. In a call that takes longer, this does not count."""

_JOINED = keys_of(ObtainSamplesResponse.DESCRIPTOR)["joined"]
_RESPONSES = keys_of(JoinedResponses.DESCRIPTOR)["responses"]


class JoiningWriter:
    """Writes the responses of one RPC in their order."""

    def __init__(self, rpc: OpenRpc) -> None:
        self._rpc = rpc
        self._waiting: list[bytes] = []
        self._num_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._writing = asyncio.Lock()

    async def write(self, response: bytes) -> None:
        """Send a response; a small one within 10 ms, if the RPC's client accepts joined ones."""
        if not self._rpc.max_joined_bytes:
            await self._rpc.write(response)
            return
        max_bytes = min(self._rpc.max_joined_bytes, _MAX_JOINED_BYTES) - _MAX_KEY_BYTES
        num_bytes = len(response) + _MAX_KEY_BYTES
        is_large = num_bytes > min(max_bytes, _MAX_PART_BYTES)
        if is_large or self._num_bytes + num_bytes > max_bytes:
            await self.flush()
        if is_large:
            await self._rpc.write(response)
            return
        self._rpc.begin_response()  # meanwhile, so that the joined responses do not wait for it
        self._waiting.append(response)
        self._num_bytes += num_bytes
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_MAX_SECONDS, self._flush_soon)

    async def flush(self) -> None:
        """Send all responses that wait."""
        async with self._writing:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            waiting, self._waiting, self._num_bytes = self._waiting, [], 0
            if waiting:
                await self._rpc.write(waiting[0] if len(waiting) == 1 else _joined(waiting))

    def close(self) -> None:
        """Send nothing more."""
        if self._timer is not None:
            self._timer.cancel()

    def _flush_soon(self) -> None:
        in_background(self.flush())  # an error comes again with the next response, or with the end of the RPC


def _joined(responses: list[bytes]) -> bytes:
    parts = [part for response in responses for part in length_delimited(_RESPONSES, [response])]
    return b"".join(length_delimited(_JOINED, parts))
