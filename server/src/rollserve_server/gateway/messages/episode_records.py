"""Records of ended episodes as messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollserve_wire.v1.episode_records_pb2 import GetMetricsResponse

if TYPE_CHECKING:
    from rollserve_server.pool import EpisodeRecords

__all__ = ["episode_records_to_proto"]

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


def episode_records_to_proto(records: EpisodeRecords) -> GetMetricsResponse:
    """Return records as a message."""
    response = GetMetricsResponse(log_id=records.log_id, position=records.position, missed_count=records.num_missed)
    for name, field in _FIELDS.items():
        getattr(response, name).extend(records.records[field].tolist())
    return response
