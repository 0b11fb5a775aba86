"""What a call begins with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollserve_server.errors import NotReadyError

if TYPE_CHECKING:
    from rollserve import Reproducibility

__all__ = ["Beginning", "check_run"]


@dataclass(frozen=True)
class Beginning:
    """What a call's episodes are a function of, so that it can be repeated, or go on after an interruption.

    Of a call that samples fragments, also how many rows all workers have, and the steps that each had made before.
    """

    seed: int
    first_episode_index: int
    policy_version: int
    env_version: int
    reproducibility: Reproducibility
    run: str
    num_rows: int = 0
    row_step_count: int = 0


def check_run(wanted: str | None, run: str) -> None:
    """Raises NotReadyError if a request means another run of the pool than this one."""
    if wanted not in (None, run):
        text = f"{wanted!r} came, but the server was started anew since: its versions of then are gone"
        raise NotReadyError(text, reason="SAMPLER_RUN", field="options.sampler_run")
