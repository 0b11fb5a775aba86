"""Streams of records of ended episodes, the present and the next ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from rollserve_wire.v1.episode_records_pb2 import GetMetricsResponse

if TYPE_CHECKING:
    from rollserve_server.pool import EpisodeLog, EpisodeRecords
    from rollserve_wire.v1.episode_records_pb2 import GetMetricsRequest

__all__ = ["records"]

_MAX_RECORDS = 1000
"""Records in a response: about 60 kB, and 1 ms of the event loop."""
_PAUSE_SECONDS = 0.1
"""Least time between two responses to come, so that many short episodes share one."""

_FIELDS = {
    "episode_indices": "episode_index",
    "returns": "total_reward",
    "lengths": "length",
    "terminated": "terminated",
    "truncated": "truncated",
    "policy_versions": "policy_version",
    "environment_versions": "env_version",
    "seconds": "seconds",
    "worker_indices": "worker",
    "rows": "row",
    "call_kinds": "call_kind",
    "delivered": "delivered",
    "unix_seconds": "unix_seconds",
}
"""Lists of a message, and the field of a record that each has."""


async def records(log: EpisodeLog, request: GetMetricsRequest) -> AsyncGenerator[GetMetricsResponse, None]:
    """Yield the records of a log that a request asks for, as many in each response as one has at most.

    Raises:
        NotReadyError: the position is of another log.
        InvalidValueError: the position is beyond the next record.
        DomainError: the log has ended.
    """
    found = log.since(request.since, request.log_id, _MAX_RECORDS)
    yield _response(found)
    until = log.num_added
    while request.follow or found.stop < until:
        if found.stop == log.num_added:
            await log.wait_beyond(found.stop)
            await asyncio.sleep(_PAUSE_SECONDS)
        found = log.since(found.stop, log.log_id, _MAX_RECORDS)
        yield _response(found)


def _response(records: EpisodeRecords) -> GetMetricsResponse:
    response = GetMetricsResponse(log_id=records.log_id, position=records.position, missed_count=records.num_missed)
    for name, field in _FIELDS.items():
        getattr(response, name).extend(records.records[field].tolist())
    return response
