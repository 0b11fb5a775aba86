"""Streams of records of ended episodes, the present and the next ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from rollserve_server.gateway.rpcs.places import Places
from rollserve_wire.v1.episode_records_pb2 import GetMetricsResponse

if TYPE_CHECKING:
    from rollserve_server.gateway.rpcs.open_rpc import OpenRpc
    from rollserve_server.pool import EpisodeLog, EpisodeRecords


__all__ = ["RecordStreams", "episode_records_to_proto"]


_MAX_STREAMS, _MAX_CLIENT_STREAMS = 64, 16
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


class RecordStreams:
    """A bounded number of streams of records. None keeps more records than one response has."""

    def __init__(self) -> None:
        self._places = Places("streams of records", _MAX_STREAMS, max_of_client=_MAX_CLIENT_STREAMS)

    async def records(
        self, log: EpisodeLog, since: int, log_id: str, *, follow: bool, rpc: OpenRpc
    ) -> AsyncGenerator[EpisodeRecords, None]:
        """Yield the records of a log, some at a time.

        Args:
            log: the log.
            since: position of the first record.
            log_id: name of the log that the position is of; empty for any.
            follow: whether to go on with records to come.
            rpc: the RPC.

        Raises:
            OverLimitError: too many streams, of the same client or in all.
            NotReadyError: the position is of another log.
            InvalidValueError: the position is beyond the next record.
            DomainError: the log has ended.
        """
        with self._places.held_by(rpc):
            records = log.since(since, log_id, _MAX_RECORDS)
            yield records
            until = log.num_added
            while follow or records.stop < until:
                if records.stop == log.num_added:
                    await log.wait_beyond(records.stop)
                    await asyncio.sleep(_PAUSE_SECONDS)
                records = log.since(records.stop, log.log_id, _MAX_RECORDS)
                yield records


def episode_records_to_proto(records: EpisodeRecords) -> GetMetricsResponse:
    """Return records as a message."""
    response = GetMetricsResponse(log_id=records.log_id, position=records.position, missed_count=records.num_missed)
    for name, field in _FIELDS.items():
        getattr(response, name).extend(records.records[field].tolist())
    return response
