"""How a pool is made, and what is asked of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rollserve_server.agents import AS_THE_AGENT_SAYS, OnnxSettings, PythonSettings
from rollserve_server.pool.workers.liveness import TimeLimits
from rollserve_server.sampling import PLAIN, ColumnFormat

if TYPE_CHECKING:
    from rollserve_server.agents import Exploration
    from rollserve_server.envs import RowSettings
    from rollserve_server.pool.interface.fragments import Fragments
    from rollserve_server.pool.plan.plan import Target

__all__ = ["HealthConfig", "PoolConfig", "SampleRequest"]


@dataclass(frozen=True)
class HealthConfig:
    """How workers are looked after.

    Attributes:
        start_seconds: how long one may take to start.
        limits: how long pieces of its work may take.
        worker_restarts_per_hour: how often each worker may be replaced within an hour.
        min_healthy_workers: how many have to be there for a call or an update to begin.
    """

    start_seconds: float = 120.0
    limits: TimeLimits = field(default_factory=TimeLimits)
    worker_restarts_per_hour: int = 60
    min_healthy_workers: int = 0


@dataclass(frozen=True)
class PoolConfig:
    """How a pool is made.

    Attributes:
        num_workers: how many workers; None for one for each core.
        max_workers: how many there may be when their number is changed; None for four times as many as there are cores
            for, or as many as there are at the beginning if that is more.
        rows: how they step the rows of environments that do not say otherwise.
        worker_buffer_bytes: how much finished, undelivered data each of them holds for a call.
        window_bytes: how much of a call may be on its way from the workers to the client.
        seed: the root seed of the pool's own sequence of episodes.
        seed_is_random: whether a sampler that is there already may have another.
        max_episode_length: how many steps an episode may have; None for what the environment allows.
        max_calls: how many calls may sample at the same time; more wait for their turn.
        max_stalled_calls: how many more there may be whose clients take nothing.
        max_waiting_calls: how many may wait for their turn; also of evaluations.
        num_kept_versions: how many versions of agents and environments can be sampled with, the current ones among
            them.
        max_kept_agent_bytes: how much those versions of agents may take that are neither current nor in use.
        allowed_modules: modules that environments may come from.
        allowed_methods: methods of environments that may set their tasks.
        progress_seconds: how often a call that delivers nothing tells of its progress.
        start_seconds: how long workers may take to start.
        env_retries: how often an episode runs again whose environment raised an error.
        straggler_factor: how many times as long as most episodes one may take before it is begun a second time; 0 for
            as long as it takes.
        step_seconds, reset_seconds: see TimeLimits.
        unit_retries: how often the same work may be lost with its worker, and be done again, before a call fails.
        worker_restarts_per_hour, min_healthy_workers: see HealthConfig.
        check_observations: whether observations that are outside their space, or no numbers, are errors.
        holds_memory: whether the workers' processes keep memory that they free.
        onnx: what the operator says about models.
        python: what the operator says about agents in Python.
    """

    num_workers: int | None
    rows: RowSettings
    worker_buffer_bytes: int
    window_bytes: int
    seed: int
    max_workers: int | None = None
    max_episode_length: int | None = None
    seed_is_random: bool = False
    max_calls: int = 4
    max_stalled_calls: int = 4
    max_waiting_calls: int = 64
    num_kept_versions: int = 4
    max_kept_agent_bytes: int = 1 << 30
    allowed_modules: frozenset[str] = frozenset()
    allowed_methods: frozenset[str] = frozenset({"set_task"})
    progress_seconds: float = 2.0
    start_seconds: float = 120.0
    env_retries: int = 3
    straggler_factor: float = 3.0
    step_seconds: float = 30.0
    reset_seconds: float = 300.0
    unit_retries: int = 3
    worker_restarts_per_hour: int = 60
    min_healthy_workers: int = 0
    check_observations: bool = False
    holds_memory: bool = False
    onnx: OnnxSettings = field(default_factory=OnnxSettings)
    python: PythonSettings = field(default_factory=PythonSettings)

    @property
    def health(self) -> HealthConfig:
        """How the workers are looked after."""
        limits = TimeLimits(self.step_seconds, self.reset_seconds)
        return HealthConfig(self.start_seconds, limits, self.worker_restarts_per_hour, self.min_healthy_workers)


@dataclass(frozen=True)
class SampleRequest:
    """What a sampling call asks for.

    Attributes:
        target: which episodes, or which steps of some.
        max_message_bytes: the size that no message may exceed.
        expected_policy_version: fail if the current one is another; None for any.
        min_policy_version: fail if the version that would act is older; None for any.
        policy_version: the version that is to act; None for the current one.
        env_version: the version of the environment to act in; None for the current one.
        seed: the root seed of the episodes; None for the pool's own sequence.
        first_index: the index of the first episode in the sequence of `seed`.
        max_episode_length: how many steps an episode may have; None for what the pool allows.
        run: the run of the pool that versions and seed are of; None for this one.
        prefetch: whether to go on with what the same request would ask for next, until it comes or something else does.
        columns: how columns may be written; None to throw away what is sampled.
        exploration: how freely the agent acts.
        num_workers: fail if there are more or fewer workers; None for any number.
        skip_failed: whether the call goes on without episodes whose environments fail again and again.
    """

    target: Target | Fragments
    max_message_bytes: int
    expected_policy_version: int | None = None
    min_policy_version: int | None = None
    policy_version: int | None = None
    env_version: int | None = None
    seed: int | None = None
    first_index: int = 0
    max_episode_length: int | None = None
    run: str | None = None
    prefetch: bool = False
    columns: ColumnFormat | None = PLAIN
    exploration: Exploration = AS_THE_AGENT_SAYS
    num_workers: int | None = None
    skip_failed: bool = False
