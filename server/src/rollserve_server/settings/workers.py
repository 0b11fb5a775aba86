"""Workers: what each is made with, how long its work may take, and how often it is replaced."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rollserve_server.settings.groups import Group, Names

__all__ = ["HealthSettings", "RowSettings", "WorkerSettings"]


class RowSettings(Group):
    """How rows are stepped, where an environment does not say it itself."""

    vectorization: Literal["auto", "rows", "native", "envpool"] = Field(
        default="auto",
        description="How rows are stepped where an environment does not say: rows, one by one; native, all at once by "
        "the environment's own vector code, which only some have; envpool, all at once by EnvPool, whose ids are its "
        "own. auto takes native where it exists, else rows; where both exist and their spaces differ, requests have to "
        "choose.",
    )
    rows: int = Field(
        default=16, ge=1, le=4096, description="Number of rows of each worker, for a call, that are stepped one by one."
    )
    native_rows: int = Field(
        default=64,
        ge=1,
        le=4096,
        description="Number of rows of each worker, for a call, that are stepped all at once.",
    )
    episodes_per_row: int = Field(
        default=8,
        ge=1,
        le=1 << 16,
        description="Number of episodes of each row in a block, where rows are stepped all at once. The more, the less "
        "rows wait for the last episode of their block; the fewer, the sooner work spreads over the workers.",
    )
    callbacks: Annotated[tuple[str, ...], Names] = Field(
        default=(),
        description="An entry point of the group rollserve.callbacks that sees each step of all environments, and may "
        "add infos. Workers load it, which runs its code. Can be given more than once; in the environment variable, "
        "separated by commas.",
    )


class WorkerSettings(RowSettings):
    """Settings of a worker. A server can take over only workers with the same settings."""

    worker_buffer_bytes: int | None = Field(
        default=None,
        ge=1,
        description="Bytes of finished data of a call that a worker may hold in memory before it begins no more "
        "episodes, or, in a fragment call, before it spills steps to temporary files. Without it, a sixteenth of the "
        "memory of the worker's machine, divided by its cores; at least 96 MiB, at most 1 GiB.",
    )
    worker_spill_bytes: int | None = Field(
        default=None,
        ge=0,
        description="Bytes of steps of a fragment call that a worker may spill to temporary files; calls that need "
        "more are refused. Without it, half of the free room in the folder for temporary files, divided by the "
        "machine's cores.",
    )
    worker_max_memory_bytes: int | None = Field(
        default=None,
        ge=0,
        description="Memory of its own that a worker's process may take. A worker that takes more is killed and "
        "replaced, and its work is done again. 0 for any. Without it, the memory of the worker's machine, divided by "
        "its cores; at least 4 GiB, at most three quarters of the memory. Workers in the server's process have no "
        "memory of their own.",
    )
    max_episode_length: int | None = Field(
        default=None,
        ge=1,
        description="Number of steps after which an episode is truncated. Calls can ask for another number. Without "
        "it, the environment's own limit holds.",
    )
    hold_memory: bool = Field(
        default=True,
        description="Whether the server and its workers keep memory that they free, for the next data, which halves "
        "the time that bulk data takes. With false they return it to the system at once. Only where the C library is "
        "glibc.",
    )
    env_retries: int = Field(
        default=3,
        ge=0,
        le=100,
        description="How often an episode runs again, in a fresh environment, after its environment raised an error, "
        "before the call fails or skips the episode.",
    )
    check_observations: bool = Field(
        default=False,
        description="Whether an observation outside its space or with NaN, or a reward that is not finite, is an error "
        "of its environment. Many environments return such values in normal operation, so they pass unless this is "
        "set.",
    )


class HealthSettings(Group):
    """How long a worker's work may take, how much memory environments may take, and how often a worker is replaced."""

    start_seconds: float = Field(default=120.0, gt=0, description="How long workers may take to start.")
    step_seconds: float = Field(
        default=30.0,
        gt=0,
        description="How long a step of an environment or an action of an agent may take; for rows that are stepped "
        "all at once, a step of all. A worker that takes longer hangs: it is killed and replaced, and its work is "
        "done again.",
    )
    reset_seconds: float = Field(
        default=300.0,
        gt=0,
        description="How long a reset of an environment may take, and making or closing an environment or an agent.",
    )
    worker_observation_bytes: int | None = Field(
        default=None,
        ge=1,
        description="Bytes that the observations of a call's rows may take in a worker, which holds eight of each row. "
        "Environments whose observations take more are refused. Without it, an eighth of the memory of the worker's "
        "machine, divided by its cores; at least 256 MiB.",
    )
    sampler_observation_bytes: int | None = Field(
        default=None,
        ge=1,
        description="Bytes that the observations of a call's rows may take in all workers of a sampler together. "
        "Environments and numbers of workers whose observations take more are refused. Without it, what "
        "--worker-observation-bytes allows four workers for each core.",
    )
    probe_memory_bytes: int | None = Field(
        default=None,
        ge=1,
        description="Memory of the child process in which an environment is tried. Environments that need more are "
        "refused. Without it, half of the machine's memory, divided by its cores; at least 4 GiB, or half of the "
        "memory if that is less.",
    )
    worker_restarts_per_hour: int = Field(
        default=60,
        ge=1,
        le=100_000,
        description="How often each worker may be replaced within an hour. A worker that is lost more often is given "
        "up until the hour is over.",
    )
    min_healthy_workers: int = Field(
        default=0,
        ge=0,
        le=10_000,
        description="Number of workers that must be healthy for a call or an update to begin; with fewer, it fails at "
        "once with UNAVAILABLE. With 0, it waits until one is healthy, for up to --start-seconds.",
    )
