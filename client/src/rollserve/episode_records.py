"""Records of ended episodes, and the request for them."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Self

import numpy as np

from rollserve_wire.checks import check_type
from rollserve_wire.errors import malformed_error, mismatch
from rollserve_wire.representations import briefly, value_html
from rollserve_wire.v1 import episode_records_pb2 as pb
from rollserve_wire.v1.episode_records_pb2 import GetMetricsRequest

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "CallKind",
    "EpisodeRecords",
    "RecordPosition",
    "records_from_proto",
    "records_request",
]


_DTYPES = {
    "episode_indices": np.uint64,
    "returns": np.float64,
    "lengths": np.uint32,
    "terminated": np.bool_,
    "truncated": np.bool_,
    "policy_versions": np.int64,
    "env_versions": np.int64,
    "seconds": np.float32,
    "worker_indices": np.uint32,
    "rows": np.uint32,
    "call_kinds": np.uint8,
    "delivered": np.bool_,
    "unix_seconds": np.float64,
}


class CallKind(enum.IntEnum):
    """The kind of call that an episode was delivered by."""

    SAMPLES = pb.CALL_KIND_SAMPLES
    EXACT_EPISODES = pb.CALL_KIND_EXACT_EPISODES
    FRAGMENTS = pb.CALL_KIND_FRAGMENTS
    EVALUATION = pb.CALL_KIND_EVALUATION


@briefly
@dataclass(frozen=True)
class RecordPosition:
    """A position among the records of a sampler.

    Attributes:
        log_id: name of the server's log; it changes when the server or its sampler starts again.
        position: number of records before it.
    """

    log_id: str
    position: int


@briefly
@dataclass(frozen=True, eq=False)
class EpisodeRecords:
    """Records of N ended episodes, in the order in which calls have delivered them.

    Attributes:
        start: position of the first record.
        num_missed: number of records before it that were asked for and that the server does not keep any more.
        episode_indices: (N,) uint64, index of each episode in its sequence.
        returns: (N,) float64, sum of the rewards of the whole episode, also where it was delivered in fragments.
        lengths: (N,) uint32, number of steps of the whole episode.
        terminated: (N,) bool, whether the environment terminated the episode.
        truncated: (N,) bool, whether the episode was truncated.
        policy_versions: (N,) int64, version of the policy that took the last step.
        env_versions: (N,) int64, version of the environment; 0 for one that an evaluation brought.
        seconds: (N,) float32, time from the episode's start to its end in its worker, pauses included.
        worker_indices: (N,) uint32, index of the worker.
        rows: (N,) uint32, row that ran the episode, within its worker.
        call_kinds: (N,) uint8, kind of call as in `rollserve.CallKind`.
        delivered: (N,) bool, whether the steps were sent to the client; false in evaluations without episodes, and with
            `blackhole`.
        unix_seconds: (N,) float64, when the episode was delivered, by the server's clock.
    """

    start: RecordPosition
    num_missed: int
    episode_indices: NDArray[np.uint64]
    returns: NDArray[np.float64]
    lengths: NDArray[np.uint32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    policy_versions: NDArray[np.int64]
    env_versions: NDArray[np.int64]
    seconds: NDArray[np.float32]
    worker_indices: NDArray[np.uint32]
    rows: NDArray[np.uint32]
    call_kinds: NDArray[np.uint8]
    delivered: NDArray[np.bool_]
    unix_seconds: NDArray[np.float64]

    def _repr_html_(self) -> str:
        return value_html(self)

    def __len__(self) -> int:
        return len(self.returns)

    @property
    def end(self) -> RecordPosition:
        """Position behind the last record, to ask for the next ones."""
        return RecordPosition(self.start.log_id, self.start.position + len(self))

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """Return the records of at least one part, whose positions follow each other, as one.

        Records that were missed between two parts are counted in `num_missed`.
        """
        columns = (np.concatenate([getattr(part, name) for part in parts]) for name in _DTYPES)
        num_missed = sum(part.num_missed for part in parts)
        last = parts[-1].end
        num_records = sum(map(len, parts))
        return cls(RecordPosition(last.log_id, last.position - num_records), num_missed, *columns)


if list(_DTYPES) != [field.name for field in fields(EpisodeRecords)][2:]:
    raise AssertionError("expected a dtype for each column of EpisodeRecords, in their order")


def records_from_proto(response: pb.GetMetricsResponse) -> EpisodeRecords:
    """Return the records of a response.

    Raises:
        ServerError: columns of different lengths.
    """
    columns: list[np.ndarray] = [
        np.array(getattr(response, name.replace("env_", "environment_")), dtype) for name, dtype in _DTYPES.items()
    ]
    lengths = {len(column) for column in columns}
    if len(lengths) > 1:
        text = mismatch("columns of one length", f"{sorted(lengths)} records")
        raise malformed_error(text)
    start = RecordPosition(response.log_id, response.position)
    return EpisodeRecords(start, response.missed_count, *columns)


def records_request(sampler: str, since: RecordPosition | None, *, follow: bool) -> GetMetricsRequest:
    """Return the request for records; for the arguments, see `rollserve.Sampler.metrics`.

    Raises:
        TypeError: `since` of the wrong type.
    """
    if since is None:
        return GetMetricsRequest(sampler=sampler, follow=follow)
    check_type("since", since, RecordPosition, "a position, such as the `end` of earlier records")
    return GetMetricsRequest(sampler=sampler, since=since.position, log_id=since.log_id, follow=follow)
