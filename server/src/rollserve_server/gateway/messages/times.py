"""Durations and points in time."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

__all__ = ["duration_to_proto", "timestamp_to_proto"]


def duration_to_proto(seconds: float) -> Duration:
    """Return a duration, to the nanosecond."""
    duration = Duration()
    duration.FromNanoseconds(round(seconds * 1e9))
    return duration


def timestamp_to_proto(seconds: float) -> Timestamp:
    """Return a point in time, to the nanosecond, from the seconds since 1970."""
    timestamp = Timestamp()
    timestamp.FromNanoseconds(round(seconds * 1e9))
    return timestamp
