"""A file of a saved sampler, made without a server."""

from __future__ import annotations

import rollserve
from rollserve_server.agents import RandomSpec
from rollserve_server.pool import SavedSampler, saved_sampler_parts
from rollserve_server.pool.state.saved_sampler import (
    SavedAgents,
    SavedEnvs,
    SavedHeader,
    SavedOwnSequence,
    SavedOwnSequences,
)

__all__ = ["LAST_SECONDS", "saved_file"]

LAST_SECONDS = 253_402_300_799.0
"""The last second of year 9999, which is the last that a timestamp can hold."""


def saved_file(env: rollserve.EnvSpec, num_rows: int, seconds: float = 0.0) -> bytes:
    """Return the file of a sampler with one worker and a random agent that has made no call.

    Args:
        env: environment of all rows.
        num_rows: number of rows that it is said to have had.
        seconds: when it was saved, and its agent accepted, since 1970.
    """
    header = SavedHeader(
        software="0.0.0",
        saved_seconds=seconds,
        seed=1,
        num_workers=1,
        max_episode_length=None,
        counters={"num_steps": 7, "unknown": 1},
        policy_version=1,
        own=SavedOwnSequences(1, 0, [SavedOwnSequence(1, 0, None)], 0),
    )
    envs, agents = {1: SavedEnvs([env], num_rows, None)}, {1: SavedAgents([RandomSpec()], seconds)}
    return b"".join(saved_sampler_parts(SavedSampler(header, envs, agents, [])))
