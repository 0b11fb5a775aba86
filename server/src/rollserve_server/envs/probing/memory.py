"""Memory of environments: what their observations may take, and what a process that tries one may take."""

from __future__ import annotations

import contextlib
import math
import resource
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rollserve_server.errors import OverLimitError
from rollserve_server.machine import data_bytes, memory_bytes, num_cores
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from rollserve_server.envs.leaves import Leaf
    from rollserve_server.settings import HealthSettings

__all__ = [
    "check_observations_fit",
    "check_sampler_observations_fit",
    "limit_memory",
    "naming_memory_limit",
    "observation_bytes",
    "worker_observation_bytes",
]

_HELD_OBSERVATIONS = 8
"""Observations of each row that a worker holds: two of the environment and its wrappers, the current one, the last one
of an episode, and four steps of a column buffer, which has room for so many however large they are.
"""

_OBSERVATIONS_SHARE = 8
"""Part of a core's share of the machine's memory that observations may take: 1 in so many. As many workers as clients
can ask for by default, four for each core, then take half of the memory.
"""

_MIN_OBSERVATION_BYTES = 256 << 20

_PROBE_SHARE = 2
"""Part of a core's share of the memory that a probe may take: 1 in so many."""

_MIN_PROBE_BYTES = 4 << 30
"""Libraries with many threads reserve gigabytes that they never use."""


def observation_bytes(leaves: Sequence[Leaf], num_rows: int) -> int:
    """Return the memory that the observations of a call's rows take in a worker.

    Args:
        leaves: leaves of the observation space.
        num_rows: number of rows of the worker.
    """
    return _row_bytes(leaves) * num_rows * _HELD_OBSERVATIONS


def check_observations_fit(leaves: Sequence[Leaf], num_rows: int, health: HealthSettings) -> int:
    """Check that a worker has memory for the observations of a call's rows; return how much they take.

    Args:
        leaves: leaves of the observation space, of the environment itself or with transforms, whichever is larger.
        num_rows: number of rows of the worker.
        health: has the limit.

    Raises:
        OverLimitError: the observations would take more.
    """
    num_bytes, limit = observation_bytes(leaves, num_rows), worker_observation_bytes(health)
    if num_bytes > limit:
        expected = f"expected observations that take at most {limit} bytes in a worker (--worker-observation-bytes)"
        got = f"got {num_bytes}: {_HELD_OBSERVATIONS} of {_row_bytes(leaves)} bytes for each of {num_rows} rows"
        raise OverLimitError(f"{expected}, {got}", reason=Reason.ENVIRONMENTS_TOO_LARGE)
    return num_bytes


def check_sampler_observations_fit(worker_bytes: int, num_workers: int, health: HealthSettings) -> None:
    """Check that the workers of a sampler have memory for the observations of a call's rows.

    Args:
        worker_bytes: memory that the observations take in each worker.
        num_workers: number of workers.
        health: has the limit.

    Raises:
        OverLimitError: the observations would take more in all workers together.
    """
    num_bytes, limit = worker_bytes * num_workers, health.sampler_observation_bytes
    if limit is not None and num_bytes > limit:
        expected = f"observations that take at most {limit} bytes in all workers (--sampler-observation-bytes)"
        got = f"{num_bytes}: {worker_bytes} in each of {num_workers} workers"
        raise OverLimitError.of("", expected=expected, got=got, reason=Reason.ENVIRONMENTS_TOO_LARGE)


def worker_observation_bytes(health: HealthSettings) -> int:
    """Return the memory that the observations of a call's rows may take in a worker, on a machine like this one."""
    if health.worker_observation_bytes is not None:
        return health.worker_observation_bytes
    return max(memory_bytes() // (_OBSERVATIONS_SHARE * num_cores()), _MIN_OBSERVATION_BYTES)


def limit_memory(health: HealthSettings) -> None:
    """Limit what this process may allocate for a probe from now on; allocations beyond that fail."""
    # Limit the data segment, not the address space: libraries reserve far more addresses than they use.
    limit = data_bytes() + _probe_bytes(health)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


@contextlib.contextmanager
def naming_memory_limit(env_id: str, health: HealthSettings) -> Iterator[None]:
    """Name the limit in place of errors in the block that failed allocations have caused.

    Raises:
        OverLimitError: an allocation failed.
    """
    try:
        yield
    except BaseException as error:
        if not _is_out_of_memory(error):
            raise
        text = f"{env_id} needs more memory than the {_probe_bytes(health)} bytes that it has when it is tried"
        text = f"{text} (--probe-memory-bytes)"
        raise OverLimitError(text, reason=Reason.ENVIRONMENTS_TOO_LARGE) from error


def _is_out_of_memory(error: BaseException | None) -> bool:
    return error is not None and (isinstance(error, MemoryError) or _is_out_of_memory(error.__cause__))


def _probe_bytes(health: HealthSettings) -> int:
    if health.probe_memory_bytes is not None:
        return health.probe_memory_bytes
    return min(max(memory_bytes() // (_PROBE_SHARE * num_cores()), _MIN_PROBE_BYTES), memory_bytes() // _PROBE_SHARE)


def _row_bytes(leaves: Sequence[Leaf]) -> int:
    return sum(leaf.dtype.itemsize * math.prod(leaf.shape) for leaf in leaves)
