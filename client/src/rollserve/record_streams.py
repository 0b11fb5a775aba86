"""Records of ended episodes as they come: a stream that blocks, and one for asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Self

import grpc
import grpc.aio

from rollserve._calls.cancellation import closed_unless_task_cancelled
from rollserve._calls.rpc_errors import error_from_rpc
from rollserve.episode_records import EpisodeRecords, RecordPosition, records_from_proto
from rollserve_wire.checks import check_type
from rollserve_wire.v1.episode_records_pb2 import GetMetricsRequest

__all__ = ["AsyncRecordStream", "RecordStream", "records_request"]


def records_request(sampler: str, since: RecordPosition | None, *, follow: bool) -> GetMetricsRequest:
    """Return the request for records; for the arguments, see `rollserve.Sampler.metrics`.

    Raises:
        TypeError: `since` of the wrong type.
    """
    if since is None:
        return GetMetricsRequest(sampler=sampler, follow=follow)
    check_type("since", since, RecordPosition, "a position, such as the `end` of earlier records")
    return GetMetricsRequest(sampler=sampler, since=since.position, log_id=since.log_id, follow=follow)


class RecordStream(Iterator[EpisodeRecords]):
    """Iterator over records of ended episodes, some at a time, as they come.

    Closing the stream, or leaving its `with` block, cancels the call. It ends with an error if the server is lost; then
    another one goes on at `end`.

    Attributes:
        end: position of the next record; None before the first response.

    Raises:
        RollserveError: from iteration, if the call fails.
    """

    def __init__(self, method: Callable[..., Any], request: GetMetricsRequest, seconds: float | None) -> None:
        self.end: RecordPosition | None = None
        self._call = method(request, timeout=seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __next__(self) -> EpisodeRecords:
        try:
            records = records_from_proto(next(self._call))
        except grpc.RpcError as error:
            raise error_from_rpc(error) from None
        self.end = records.end
        return records

    def close(self) -> None:
        """Cancel the call. Another thread may do so while one waits for records."""
        self._call.cancel()


class AsyncRecordStream(AsyncIterator[EpisodeRecords]):
    """Asynchronous iterator over records of ended episodes; see `rollserve.RecordStream`.

    Attributes:
        end: position of the next record; None before the first response.
    """

    def __init__(self, method: Callable[..., Any], request: GetMetricsRequest, seconds: float | None) -> None:
        self.end: RecordPosition | None = None
        self._call = method(request, timeout=seconds)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.close()

    async def __anext__(self) -> EpisodeRecords:
        try:
            with closed_unless_task_cancelled("stream"):
                response = await self._call.read()
        except grpc.RpcError as error:
            raise error_from_rpc(error) from None
        if response is grpc.aio.EOF:
            raise StopAsyncIteration
        records = records_from_proto(response)
        self.end = records.end
        return records

    def close(self) -> None:
        """Cancel the call."""
        self._call.cancel()
