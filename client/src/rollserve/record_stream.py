# Generated from async_record_stream.py by `make blocking`.
"""Records of ended episodes as they come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Self

import grpc

from rollserve._calls.rpc_errors import error_from_rpc
from rollserve._calls.waiting import Waiting
from rollserve.episode_records import EpisodeRecords, records_from_proto

if TYPE_CHECKING:
    from rollserve.episode_records import RecordPosition
    from rollserve_wire.v1.episode_records_pb2 import GetMetricsRequest

__all__ = ["RecordStream"]


class RecordStream(Iterator[EpisodeRecords]):
    """Iterator over records of ended episodes, some at a time, as they come.

    Closing the stream, or leaving its `with` block, cancels the call. It ends with an error if the server is
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __next__(self) -> EpisodeRecords:
        try:
            response = self._waiting.message(self._call)
        except grpc.RpcError as error:
            raise error_from_rpc(error) from None
        if response is None:
            raise StopIteration
        records = records_from_proto(response)
        self.end = records.end
        return records

    def close(self) -> None:
        """Cancel the call. Another thread may do so while one waits for records."""
        self._waiting.close(self._call)
