"""Messages that every stream has: its beginning, and its progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollserve.reproducibility import reproducibility_to_proto
from rollserve.v1 import episode_batch_pb2

if TYPE_CHECKING:
    from rollserve_server.pool import Beginning, Progress

__all__ = ["beginning_to_proto", "progress_to_proto"]


def beginning_to_proto(
    beginning: Beginning, shared_memory: episode_batch_pb2.SharedMemory | None = None
) -> episode_batch_pb2.Beginning:
    """Return the beginning of a call, and the memory that its messages may go through."""
    return episode_batch_pb2.Beginning(
        seed=beginning.seed,
        first_episode_index=beginning.first_episode_index,
        policy_version=beginning.policy_version,
        environment_version=beginning.env_version,
        reproducibility=reproducibility_to_proto(beginning.reproducibility),
        sampler_run=beginning.run,
        row_count=beginning.num_rows,
        row_step_count=beginning.row_step_count,
        shared_memory=shared_memory,
        worker_count=beginning.num_workers,
    )


def progress_to_proto(progress: Progress) -> episode_batch_pb2.Progress:
    """Return the progress of a call."""
    return episode_batch_pb2.Progress(simulated_step_count=progress.num_simulated_steps)
