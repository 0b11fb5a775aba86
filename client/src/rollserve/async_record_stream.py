"""Records of ended episodes as they come, for asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Self

import grpc

from rollserve._calls.async_waiting import Waiting
from rollserve._calls.rpc_errors import error_from_rpc
from rollserve.episode_records import EpisodeRecords, records_from_proto

if TYPE_CHECKING:
    from rollserve.episode_records import RecordPosition
    from rollserve_wire.v1.episode_records_pb2 import GetMetricsRequest

__all__ = ["AsyncRecordStream"]


class AsyncRecordStream(AsyncIterator[EpisodeRecords]):
    """Async iterator over records of ended episodes, some at a time, as they come.

    Closing the stream, or leaving its `async with` block, cancels the call. It ends with an error if the server is
    lost; then another one goes on at `end`.

    Attributes:
        end: position of the next record; None before the first response.

    Raises:
        RollserveError: from iteration, if the call fails.
    """

    def __init__(self, method: Callable[..., Any], request: GetMetricsRequest, seconds: float | None) -> None:
        self.end: RecordPosition | None = None
        self._waiting = Waiting(float("inf"))
        self._call = method(request, timeout=seconds)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.close()

    async def __anext__(self) -> EpisodeRecords:
        try:
            response = await self._waiting.message(self._call)
        except grpc.RpcError as error:
            raise error_from_rpc(error) from None
        if response is None:
            raise StopAsyncIteration
        records = records_from_proto(response)
        self.end = records.end
        return records

    def close(self) -> None:
        """Cancel the call. Another task may do so while one waits for records."""
        self._waiting.close(self._call)
