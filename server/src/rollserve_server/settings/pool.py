"""The pool: its workers, calls, agents and records, in groups that it passes on to its parts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from rollserve_server.settings.environment import AllowSettings, ProfileSettings
from rollserve_server.settings.groups import Group, Names, Reloadable, parse_json

__all__ = [
    "MAX_EVALUATIONS",
    "AgentSettings",
    "CallSettings",
    "HealthSettings",
    "MetricsSettings",
    "PoolSettings",
    "Quota",
    "RenderSettings",
    "RowSettings",
    "SandboxLimits",
    "VersionSettings",
    "WorkerSettings",
]

MAX_EVALUATIONS = 2
"""Evaluations that run at a time; as many again may be stalled. Each has environments of its own on every worker, and a
second one lets a call proceed while another goes wrong."""
_POSITIVE = [float(f"{digit}e{power}") for power in range(-1, 5) for digit in (1, 2, 5)]
_RETURN_BOUNDS = (*(-bound for bound in reversed(_POSITIVE)), 0.0, *_POSITIVE)
"""Returns have any scale and both signs."""


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
    row_threads: bool = Field(
        default=False,
        description="Whether rows with one agent that are stepped one by one step at the same time, each in a thread, "
        "as environments need that wait in their steps: for a robot, another service, a language model. They have to "
        "be safe for threads. Others get slower by it.",
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
        "its cores; at least 4 GiB, at most three quarters of the memory. With --backend in-process, workers have "
        "no memory of their own, and any number but 0 is refused.",
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

    start_seconds: float = Field(
        default=120.0,
        gt=0,
        description="How long workers may take to start, and the cluster at --ray-address to answer. A Ray of the "
        "server's own that fails to start is started again within this time.",
    )
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


class CallSettings(Group):
    """How calls share the workers, and when they give up."""

    max_calls: Reloadable[int] = Field(
        default=4,
        ge=1,
        le=64,
        description="Number of calls that sample at the same time; the others queue. Each has environments of its own.",
    )
    max_stalled_calls: Reloadable[int] = Field(
        default=4,
        ge=0,
        le=64,
        description="Number of further calls that are paused, or whose clients may be stalled, which means that they "
        "do not read what is ready. A stalled call does not count as running while others queue. When one more is "
        "needed, the call that has stalled longest is ended.",
    )
    max_waiting_calls: Reloadable[int] = Field(
        default=64, ge=0, le=100_000, description="Number of calls that may queue; further ones are refused."
    )
    call_window_bytes: int = Field(
        default=64 << 20,
        ge=1,
        description="Bytes of a call's result that may be on their way from the workers to the client.",
    )
    gateway_buffer_bytes: int = Field(
        default=1 << 30,
        ge=1,
        description="Bytes of all calls' results together that may be on their way from the workers to clients; each "
        "call has at most an equal share.",
    )
    unit_retries: Reloadable[int] = Field(
        default=3,
        ge=0,
        le=1000,
        description="How often an episode, or a block, runs again beside others because its worker was lost. After "
        "that it runs alone on a worker, and the call fails if two more workers are lost with it. Also how often it "
        "runs again because it hung, before the call fails.",
    )
    straggler_factor: Reloadable[float] = Field(
        default=3.0,
        ge=0,
        description="An episode that takes this many times as long as most others, and at least a second, is begun a "
        "second time on a worker that would be idle; the first run to finish counts, and both are equal. Only where "
        "any worker may run any episode. With 0, calls wait however long it takes.",
    )
    max_unended_steps: Reloadable[int] = Field(
        default=1_000_000,
        ge=0,
        description="Number of steps that the rows of a call may make since one of its episodes last ended, before "
        "the call fails; or 3 % of that for each row, 100 times the steps that the call asks for, or twice the "
        "environment's own limit for each row, whichever is most. Only without max_episode_length. With 0, calls go on "
        "for ever.",
    )
    turn_steps: Reloadable[int] = Field(
        default=50_000,
        ge=1,
        description="Number of steps that a call makes before it may have to pause for a queued call of a connection "
        "with one running call less. For a connection with two or more less, it pauses at once.",
    )
    max_call_steps: Reloadable[int] = Field(
        default=0,
        ge=0,
        description="Number of steps that a call may ask for, or make for the episodes that it asks for. With 0, any "
        "number.",
    )
    max_call_seconds: Reloadable[float] = Field(
        default=0.0,
        ge=0,
        le=1e9,
        description="How long a call may run, without the time that it queues or pauses or its client takes to read; "
        "then it is ended, and its client can ask for the rest in a call that queues again. With 0, for ever.",
    )
    progress_seconds: float = 2.0
    """How often a call that delivers nothing reports progress."""

    @property
    def window_bytes(self) -> int:
        """Bytes of one call that may be on their way, so that all calls together keep to `gateway_buffer_bytes`."""
        max_calls = self.max_calls + self.max_stalled_calls + 2 * MAX_EVALUATIONS
        return max(min(self.call_window_bytes, self.gateway_buffer_bytes // max_calls), 1)


@dataclass(frozen=True)
class SandboxLimits:
    """Limits of the child process in which an agent is tried.

    Attributes:
        seconds: processor time.
        patience: wall-clock time, as a multiple of `seconds`: the machine may be busy.
        memory_bytes: memory, beside eight times the agent's own size.
    """

    seconds: int = 60
    patience: int = 5
    memory_bytes: int = 4 << 30


class AgentSettings(Group):
    """Settings of agents: the accepted kinds, and how models run."""

    max_model_bytes: Reloadable[int] = Field(
        default=192 << 20,
        ge=1,
        lt=2**31,
        description="Size of the largest ONNX model or pickled agent that is accepted in a request.",
    )
    allow_pickle: Reloadable[bool] = Field(
        default=False,
        description="Whether agents may come as pickles. Reading a pickle runs whatever code it holds: whoever "
        "reaches the server can then run code as the user of the server and its workers.",
    )
    onnx_providers: Annotated[tuple[str, ...], Names] = Field(
        default=("CPUExecutionProvider",),
        description="An execution provider of ONNX Runtime, the best first. Can be given more than once; in the "
        "environment variable, separated by commas. Equal bits are guaranteed for the CPU's provider alone.",
    )
    model_sandbox: SandboxLimits = SandboxLimits()
    """Limits of the sandbox for ONNX models."""
    python_sandbox: SandboxLimits = SandboxLimits(seconds=25, patience=2)
    """Limits of the sandbox for Python agents."""


class VersionSettings(Group):
    """How many versions of agents and environments are kept."""

    keep_versions: int = Field(
        default=4,
        ge=1,
        le=1000,
        description="Number of versions of agents, and of environments, that the workers keep, so that an interrupted "
        "call can go on after an update.",
    )
    max_kept_agent_bytes: int = Field(
        default=1 << 30,
        ge=0,
        description="Bytes that kept versions of agents may take in a process, beside the current one and those that "
        "calls use; beyond that, the oldest are forgotten.",
    )


class MetricsSettings(Group):
    """Settings of the records of ended episodes."""

    episode_records: int = Field(
        default=10_000,
        ge=1,
        le=10_000_000,
        description="Number of ended episodes that are kept for GetMetrics, about 70 bytes each; the oldest ones are "
        "overwritten.",
    )
    return_buckets: Annotated[tuple[float, ...] | None, BeforeValidator(parse_json)] = Field(
        default=None,
        min_length=1,
        max_length=200,
        description="Upper bounds of the buckets of the histogram of returns, rising, as JSON: [0, 100, 200]. Without "
        "it, 1, 2 and 5 times powers of ten, from -50000 to 50000.",
    )

    @field_validator("return_buckets")
    @classmethod
    def _check_return_buckets(cls, value: Sequence[float] | None) -> Sequence[float] | None:
        if any(low >= high for low, high in itertools.pairwise(value or ())):
            raise ValueError("expected rising numbers")
        return value

    @property
    def return_bounds(self) -> Sequence[float]:
        """Upper bounds of the buckets of the histogram of returns."""
        return self.return_buckets or _RETURN_BOUNDS


class RenderSettings(Group):
    """Bounds of videos, which child processes of the server make."""

    max_video_frames: Reloadable[int] = Field(
        default=20_000, ge=2, le=10_000_000, description="Number of pictures that a video may have."
    )
    max_video_bytes: Reloadable[int] = Field(default=1 << 30, ge=1, description="Bytes that a video may have.")
    render_seconds: Reloadable[float] = Field(
        default=600.0,
        gt=0,
        le=1e9,
        description="How long a video may take to be made, without the time that its episode takes to be sampled and "
        "its client to read.",
    )


@dataclass(frozen=True)
class Quota:
    """Limits of a sampler; 0 for none.

    Attributes:
        num_workers: number of workers.
        num_rows: number of rows of all workers together, for a call.
        result_bytes: bytes of results that may be on their way from the workers to clients.
        num_calls: number of calls that sample at the same time.
        steps_per_second: steps per second of all calls together.
    """

    num_workers: int = 0
    num_rows: int = 0
    result_bytes: int = 0
    num_calls: int = 0
    steps_per_second: float = 0.0


class PoolSettings(Group):
    """Settings of a pool."""

    workers: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="Number of workers; with --min-workers, at the start. Without it, --min-workers, or else one for "
        "each core.",
    )
    max_workers: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="Number of workers that clients may ask for with ResizePool, and that a sampler may grow to, of "
        "all samplers together. Without it, four for each core, or as many as there are at the start if that is more.",
    )
    min_workers: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="Least number of workers of a sampler that grows with its load, up to --max-workers, or its quota, "
        "and shrinks when it is idle. Needs --max-workers. Without it, the number stays until a client changes it.",
    )
    scale_down_seconds: float = Field(
        default=300.0,
        gt=0,
        le=1e6,
        description="How long fewer workers have to be enough before a sampler with --min-workers gives the others up.",
    )
    seed: int | None = Field(
        default=None,
        ge=0,
        lt=2**64,
        description="Root seed of the episodes of calls that name none. Without it, a random one.",
    )
    worker: WorkerSettings = Field(default_factory=WorkerSettings)
    health: HealthSettings = Field(default_factory=HealthSettings)
    calls: CallSettings = Field(default_factory=CallSettings)
    versions: VersionSettings = Field(default_factory=VersionSettings)
    agents: AgentSettings = Field(default_factory=AgentSettings)
    allow: AllowSettings = Field(default_factory=AllowSettings)
    metrics: MetricsSettings = Field(default_factory=MetricsSettings)
    profiles: ProfileSettings = Field(default_factory=ProfileSettings)
    rendering: RenderSettings = Field(default_factory=RenderSettings)
    quota: Quota = Quota()
    """Limits of a sampler that a client has created."""

    @field_validator("max_workers")
    @classmethod
    def _check_max_workers(cls, value: int | None, info: ValidationInfo) -> int | None:
        num_workers = info.data.get("workers")
        if value is not None and num_workers is not None and value < num_workers:
            raise ValueError(f"expected at least {num_workers}, the number of workers")
        return value

    @field_validator("min_workers")
    @classmethod
    def _check_min_workers(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is None:
            return None
        if info.data.get("max_workers") is None:
            raise ValueError("expected --max-workers, too")
        for name in ("workers", "max_workers"):
            limit = info.data.get(name)
            if limit is not None and value > limit:
                raise ValueError(f"expected at most {limit}, as {name} says")
        return value
