"""What a call begins with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollserve import Reason
from rollserve_server.errors import NotReadyError

if TYPE_CHECKING:
    from rollserve import Reproducibility

__all__ = ["Beginning", "check_run", "check_size"]


@dataclass(frozen=True)
class Beginning:
    """What a call's episodes are a function of, so that it can be repeated, or go on after an interruption.

    Of a call that samples fragments, also how many rows all workers have, and the steps that each had made before. How
    many workers there are says what exact episodes and fragments are; others are the same with any number.
    """

    seed: int
    first_episode_index: int
    policy_version: int
    env_version: int
    reproducibility: Reproducibility
    run: str
    num_rows: int = 0
    row_step_count: int = 0
    num_workers: int = 0


def check_run(wanted: str | None, run: str) -> None:
    """Raises NotReadyError if a request means another run of the pool than this one."""
    if wanted not in (None, run):
        text = f"{wanted!r} came, but the server was started anew since: its versions of then are gone"
        raise NotReadyError(text, reason=Reason.SAMPLER_RUN, field="options.sampler_run")


def check_size(wanted: int | None, num_workers: int) -> None:
    """Raises NotReadyError if a request counts on another number of workers than this one."""
    if wanted not in (None, num_workers):
        text = f"{wanted} came, but there are {num_workers} workers now"
        raise NotReadyError(text, reason=Reason.WORKER_COUNT, field="options.worker_count")
