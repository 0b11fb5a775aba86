"""The log of a sampler's ended episodes: the last of them one by one, and all of them in histograms."""

from __future__ import annotations

import asyncio
import copy
import enum
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rollserve_server.errors import InvalidValueError, NotReadyError
from rollserve_server.sampling import ENDING
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from numpy.typing import NDArray

    from rollserve_server.errors import DomainError
    from rollserve_server.settings import MetricsSettings

__all__ = ["CallKind", "EpisodeLog", "EpisodeRecords", "Histogram", "Origin"]

LENGTH_BUCKETS = tuple(float(digit * 10**power) for power in range(7) for digit in (1, 2, 5))
"""Upper bounds of the histogram of lengths: 1 to 5 million steps."""

_PAUSE_SECONDS = 0.1
"""Least time between two parts of a stream that are to come, so that many short episodes share one."""
_NUM_SEEN = 100
"""How many times as many records are looked at for the last ones of sampling calls."""


class CallKind(enum.IntEnum):
    """The kind of call that an episode ended in."""

    SAMPLES = 1
    EXACT_EPISODES = 2
    FRAGMENTS = 3
    EVALUATION = 4


class Origin(NamedTuple):
    """The call, and the versions, that an episode comes from.

    Attributes:
        call_kind: kind of the call that it ended in.
        delivered: whether its steps are sent to the client; of a fragment, the last ones.
        policy_version: version of the agent of that call.
        env_version: version of the environment; 0 for one that the call brought.
    """

    call_kind: CallKind
    delivered: bool
    policy_version: int
    env_version: int


RECORD = np.dtype(
    [
        *((name, ENDING[name]) for name in ENDING.names or ()),
        ("worker", "<u4"),
        ("call_kind", "u1"),
        ("delivered", "?"),
        ("policy_version", "<i8"),
        ("env_version", "<i8"),
        ("unix_seconds", "<f8"),
    ]
)
"""The record of an episode: its end, its worker and origin, and when the pool got to know of it, in seconds since 1970.
"""


@dataclass(frozen=True)
class EpisodeRecords:
    """Consecutive records of ended episodes.

    Attributes:
        log_id: name of the log. Positions of another log mean nothing in this one.
        position: position of the first record, or of the next one to come if there are none.
        num_missed: number of records before it that were asked for and are overwritten.
        records: array of `RECORD`.
    """

    log_id: str
    position: int
    num_missed: int
    records: NDArray[np.void]

    @property
    def stop(self) -> int:
        """Position behind the last record."""
        return self.position + len(self.records)


class Histogram:
    """Numbers counted in buckets.

    Attributes:
        bounds: upper bounds of the buckets, rising; a last bucket has none.
        counts: number of values in each bucket.
        total: sum of all values.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = np.zeros(len(bounds) + 1, np.int64)
        self.total = 0.0

    def add(self, values: NDArray[np.float64]) -> None:
        """Count values."""
        places = np.searchsorted(self.bounds, values, "left")
        self.counts += np.bincount(places, minlength=len(self.counts))
        self.total += float(values.sum())


class EpisodeLog:
    """The ended episodes of a sampler, in the order in which calls deliver them.

    An episode is added when a call delivers its end, or counts it as discarded. So it is added once, however many
    workers have run it, and never if the call does not use it. Nobody waits for readers: a reader who is too late
    learns how many records it has missed.

    Attributes:
        log_id: random name of this log, which ends with the server.
        num_added: number of episodes added; the position of the next one.
        returns, lengths: histograms of all episodes by the kind of their calls.
    """

    def __init__(self, settings: MetricsSettings) -> None:
        """Start without episodes; the settings say how many are kept, and the bounds of the returns' buckets."""
        self.log_id = secrets.token_hex(8)
        self.num_added = 0
        self.returns: dict[CallKind, Histogram] = {}
        self.lengths: dict[CallKind, Histogram] = {}
        self._return_buckets = settings.return_bounds
        self._ring = np.zeros(settings.episode_records, RECORD)
        self._added = asyncio.Event()
        self._error: DomainError | None = None

    def add(self, endings: bytes, worker: int, origin: Origin) -> None:
        """Add the episodes that ended in a message of a worker; see `Message.endings`."""
        ended = np.frombuffer(endings, ENDING)
        records = np.empty(len(ended), RECORD)
        for name in ENDING.names or ():
            records[name] = ended[name]
        records["worker"], records["unix_seconds"] = worker, time.time()
        records["call_kind"], records["delivered"], records["policy_version"], records["env_version"] = origin
        self._count(records, origin.call_kind)
        kept = records[-len(self._ring) :]
        places = np.arange(self.num_added + len(records) - len(kept), self.num_added + len(records)) % len(self._ring)
        self._ring[places] = kept
        self.num_added += len(records)
        self._notify()

    def since(self, position: int, log_id: str, max_records: int) -> EpisodeRecords:
        """Return the first records from a position on.

        Args:
            position: position of the first one.
            log_id: name of the log that the position is of; empty for any.
            max_records: number of records that is not exceeded.

        Raises:
            NotReadyError: the position is of another log.
            InvalidValueError: the position is beyond the next record.
        """
        if log_id not in ("", self.log_id):
            text = f"log_id: expected {self.log_id!r}, got {log_id!r}: another log has begun, so ask without it"
            raise NotReadyError(text, reason=Reason.SAMPLER_RUN, field="log_id")
        if position > self.num_added:
            raise InvalidValueError.of("since", expected=f"at most {self.num_added}, the next record", got=position)
        first = max(position, self.num_added - len(self._ring))
        stop = min(first + max_records, self.num_added)
        return EpisodeRecords(
            self.log_id, first, first - position, self._ring[np.arange(first, stop) % len(self._ring)]
        )

    async def stream(
        self, position: int, log_id: str, max_records: int, *, follow: bool
    ) -> AsyncGenerator[EpisodeRecords, None]:
        """Yield the records from a position on, at most so many at a time; arguments and errors as of `since`.

        Args:
            position: position of the first one.
            log_id: name of the log that the position is of; empty for any.
            max_records: number of records at a time that is not exceeded.
            follow: whether to go on with records to come, until the log ends, which raises its error.
        """
        records = self.since(position, log_id, max_records)
        yield records
        until = self.num_added
        while follow or records.stop < until:
            if records.stop == self.num_added:
                await self.wait_beyond(records.stop)
                await asyncio.sleep(_PAUSE_SECONDS)
            records = self.since(records.stop, self.log_id, max_records)
            yield records

    def latest_sampled(self, num_records: int) -> NDArray[np.void]:
        """Return the last records of sampling calls, at most so many."""
        num_seen = _NUM_SEEN * num_records
        records = self.since(max(self.num_added - num_seen, 0), "", num_seen).records
        sampled: NDArray[np.void] = records[records["call_kind"] != CallKind.EVALUATION]
        return sampled[-num_records:]

    async def wait_beyond(self, position: int) -> None:
        """Wait until there is a record at a position.

        Raises:
            DomainError: the log has ended.
        """
        while self.num_added <= position:
            if self._error is not None:
                raise copy.copy(self._error)
            await self._added.wait()

    def end(self, error: DomainError) -> None:
        """Have all who wait for records raise the error, now and later."""
        self._error = error
        self._notify()

    def _notify(self) -> None:
        self._added.set()
        self._added = asyncio.Event()

    def _count(self, records: NDArray[np.void], kind: CallKind) -> None:
        if kind not in self.returns:
            self.returns[kind], self.lengths[kind] = Histogram(self._return_buckets), Histogram(LENGTH_BUCKETS)
        self.returns[kind].add(records["total_reward"])
        self.lengths[kind].add(records["length"].astype(np.float64))
