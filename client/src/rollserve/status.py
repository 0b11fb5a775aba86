"""State of samplers and of their workers, and their quotas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rollserve_wire.environments import EnvSpec, Reproducibility, env_spec_from_proto, reproducibility_from_proto
from rollserve_wire.json_arguments import kwargs_from_json
from rollserve_wire.records import message_from_record, record_from_message
from rollserve_wire.representations import briefly, value_html
from rollserve_wire.spaces import Space, space_from_proto
from rollserve_wire.v1 import sampler_service_pb2 as pb
from rollserve_wire.v1 import samplers_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping

    from google.protobuf.duration_pb2 import Duration

    from rollserve_wire.v1 import settings_pb2

__all__ = [
    "Counters",
    "EnvProfile",
    "Quota",
    "SamplerStatus",
    "SamplerSummary",
    "Scaling",
    "SettingChange",
    "SettingsReload",
    "WorkerStatus",
    "duration_text",
    "quota_to_proto",
    "samplers_from_proto",
    "status_from_proto",
]


@briefly
@dataclass(frozen=True)
class Quota:
    """Limits of a sampler. In requests, 0 stands for the operator's maximum; in answers, for no limit.

    Attributes:
        num_workers: number of workers that `resize` may set; in requests, 0 stands for the number at the start.
        num_rows: number of rows of all workers together, for a call.
        result_bytes: bytes of results that may be on their way from the workers to clients.
        num_calls: number of calls that sample at the same time; others queue.
        steps_per_second: steps per second of all calls together; faster calls are slowed down.
    """

    num_workers: int = 0
    num_rows: int = 0
    result_bytes: int = 0
    num_calls: int = 0
    steps_per_second: float = 0.0


@briefly
@dataclass(frozen=True)
class WorkerStatus:
    """State of a worker.

    A worker that is neither healthy nor has failed is being replaced.

    Attributes:
        worker_index: index of the worker, from 0.
        healthy: whether the worker takes work.
        num_rows: number of environments that the worker steps at once.
        num_simulated_steps: steps that the worker has simulated.
        process_id: id of the worker's process; 0 if it has never started, or if the client is on another machine than
            the server.
        host: machine that the worker runs on; empty if it has never started, or if the client is on another machine
            than the server.
        leaving: whether a `resize` has removed the worker and calls from before still use it.
        has_failed: whether the worker was lost as often as the server allows within an hour; it is left out until that
            hour is over.
        num_restarts: number of times that the worker was replaced, failed attempts included.
        last_failure: why the previous process of this worker was lost or could not be started; empty if that never
            happened.
    """

    worker_index: int
    healthy: bool
    num_rows: int
    num_simulated_steps: int
    process_id: int
    host: str
    leaving: bool = False
    has_failed: bool = False
    num_restarts: int = 0
    last_failure: str = ""


@briefly
@dataclass(frozen=True)
class Counters:
    """Counters of a sampler since its start.

    Attributes:
        num_completed_calls: sampling calls that were answered in full.
        num_failed_calls: sampling calls that ended with an error.
        num_cancelled_calls: sampling calls that their client, a deadline or the server's stop ended.
        num_steps: delivered steps.
        num_episodes: delivered episodes.
        num_simulated_steps: simulated steps.
        message_bytes: bytes of delivered messages.
        uptime_seconds: time since the sampler's start.
        num_env_failures: errors that environments raised in episodes, of calls and evaluations that have ended.
        num_retried_episodes: episodes of these calls and evaluations that ran again after something had failed.
        num_failed_episodes: episodes that these calls and evaluations skipped.
        num_straggler_episodes: episodes of these calls and evaluations that were started a second time on another
            worker, because the first run took far longer than others.
        num_worker_restarts: number of times that workers were replaced, failed attempts and former workers included.
        num_non_finite_steps: delivered steps with a NaN or an infinity; see `Account.num_non_finite_steps`.
    """

    num_completed_calls: int
    num_failed_calls: int
    num_cancelled_calls: int
    num_steps: int
    num_episodes: int
    num_simulated_steps: int
    message_bytes: int
    uptime_seconds: float
    num_env_failures: int = 0
    num_retried_episodes: int = 0
    num_failed_episodes: int = 0
    num_straggler_episodes: int = 0
    num_worker_restarts: int = 0
    num_non_finite_steps: int = 0


@briefly
@dataclass(frozen=True)
class EnvProfile:
    """Environment that the server's operator has declared; `update_env("profile:NAME")` requests it.

    Attributes:
        name: name of the profile.
        description: the operator's text about it.
        arguments: JSON Schema (draft 2020-12) of the keyword arguments that the environment accepts.
    """

    name: str
    description: str
    arguments: Mapping[str, object]


@briefly
@dataclass(frozen=True)
class Scaling:
    """Bounds within which the number of a sampler's workers follows its load.

    Attributes:
        min_num_workers: least number of workers.
        max_num_workers: greatest number of workers.
        num_wanted_workers: number of workers that there should be.
        held_by: what would end or differ with another number, so that it stays; empty if nothing would.
    """

    min_num_workers: int
    max_num_workers: int
    num_wanted_workers: int
    held_by: str


@briefly
@dataclass(frozen=True)
class SamplerStatus:
    """State of a sampler.

    Attributes:
        sampler: name of the sampler.
        server_version: version of the server's software.
        envs: one environment for all workers; or one for each worker; or, where rows may differ, one for each row,
            worker by worker; without the arguments that the server's operator has given.
        env_version: version of the environments; 1 for the first.
        observation_space: space of observations.
        action_space: space of actions.
        agent_kinds: kind of each worker's agent, or one kind for all; empty as long as there is no agent.
        policy_version: version of the policy; 0 as long as there is no agent.
        reproducibility: which unit of work the same seed gives again.
        num_episodes_per_row: number of episodes of each row in a block; None unless reproducibility is BLOCK.
        seed: root seed of the sampler's own sequence of episodes.
        next_episode_index: index in that sequence at which the next call begins.
        workers: the workers, in the order of their indices, followed by workers that are leaving.
        counters: counters since the sampler's start.
        min_healthy_workers: number of workers that have to be healthy for a call or an update to begin.
        hidden_arguments: names of the arguments that are left out of `envs`, such as `kwargs.level`.
        profiles: environments that the server's operator has declared.
        num_running_calls: number of sampling calls and evaluations that run, stalled ones included.
        num_queued_calls: number of sampling calls and evaluations that queue or are paused.
        policy_age_seconds: how long ago the policy was set; 0 as long as there is none.
        owner: principal that created the sampler; empty for the default one.
        lease_seconds: time without a call after which the sampler is deleted; None for never.
        quota: limits of the sampler.
        agents: names of the possible agents of an environment with many.
        policies: current version of each policy by name, where the agent is policies by name.
        packages: versions of the packages that the workers' environments run with, and the hash seed of their processes
            (`PYTHONHASHSEED`), by name; where workers differ, all of them, with "and" between them.
        scaling: how the number of workers follows the load; None if only `resize` changes it.
    """

    sampler: str
    server_version: str
    envs: Sequence[EnvSpec]
    env_version: int
    observation_space: Space
    action_space: Space
    agent_kinds: Sequence[str]
    policy_version: int
    reproducibility: Reproducibility
    num_episodes_per_row: int | None
    seed: int
    next_episode_index: int
    workers: Sequence[WorkerStatus]
    counters: Counters
    min_healthy_workers: int = 0
    hidden_arguments: Sequence[str] = ()
    profiles: Sequence[EnvProfile] = ()
    num_running_calls: int = 0
    num_queued_calls: int = 0
    policy_age_seconds: float = 0.0
    owner: str = ""
    lease_seconds: float | None = None
    quota: Quota = field(default_factory=Quota)
    agents: Sequence[str] = ()
    policies: Mapping[str, int] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    scaling: Scaling | None = None

    def _repr_html_(self) -> str:
        return value_html(self)

    @property
    def num_workers(self) -> int:
        """Number of workers for calls that begin now."""
        return sum(not worker.leaving for worker in self.workers)

    @property
    def num_rows(self) -> int:
        """Number of rows of these workers, whose multiple is the number of steps of a call for fragments."""
        return sum(worker.num_rows for worker in self.workers if not worker.leaving)


def status_from_proto(message: pb.GetSamplerResponse) -> SamplerStatus:
    """Return the status that a message describes."""
    workers = tuple(
        record_from_message(
            WorkerStatus,
            worker,
            healthy=worker.health == pb.WORKER_HEALTH_HEALTHY,
            leaving=worker.health == pb.WORKER_HEALTH_LEAVING,
            has_failed=worker.health == pb.WORKER_HEALTH_FAILED,
        )
        for worker in message.workers
    )
    return SamplerStatus(
        sampler=message.sampler,
        server_version=message.server_version,
        envs=tuple(map(env_spec_from_proto, message.environments)),
        env_version=message.environment_version,
        observation_space=space_from_proto(message.observation_space),
        action_space=space_from_proto(message.action_space),
        agent_kinds=tuple(message.agent_kinds),
        policy_version=message.policy_version,
        reproducibility=reproducibility_from_proto(message.reproducibility),
        num_episodes_per_row=message.episodes_per_row or None,
        seed=message.seed,
        next_episode_index=message.next_episode_index,
        workers=workers,
        counters=record_from_message(Counters, message.counters),
        min_healthy_workers=message.min_healthy_worker_count,
        hidden_arguments=tuple(message.hidden_arguments),
        profiles=tuple(map(_profile_from_proto, message.profiles)),
        num_running_calls=message.running_call_count,
        num_queued_calls=message.queued_call_count,
        policy_age_seconds=message.policy_age.ToNanoseconds() / 1e9,
        owner=message.owner,
        lease_seconds=seconds_of(message, "lease"),
        quota=quota_from_proto(message.quota),
        agents=tuple(message.agents),
        policies=dict(message.policies),
        packages=dict(sorted(message.packages.items())),
        scaling=_scaling_from_proto(message.scaling) if message.HasField("scaling") else None,
    )


def _scaling_from_proto(message: pb.Scaling) -> Scaling:
    bounds = message.min_worker_count, message.max_worker_count
    return Scaling(*bounds, message.wanted_worker_count, message.held_by)


def _profile_from_proto(message: pb.EnvironmentProfile) -> EnvProfile:
    return EnvProfile(message.name, message.description, kwargs_from_json(message.arguments_schema_json))


@briefly
@dataclass(frozen=True)
class SamplerSummary:
    """A sampler of a server, in brief.

    Attributes:
        sampler: name of the sampler.
        owner: principal that created it; empty for the default one.
        created_seconds: when it was created, in seconds since 1970; for the default one, when the server started.
        env_ids: ids of its environments, each once.
        num_workers: number of workers for calls that begin now.
        policy_version: version of the policy; 0 as long as there is no agent.
        lease_seconds: time without a call after which it is deleted; None for never.
        lease_left_seconds: the part of it that is left; None for never.
        quota: its limits.
    """

    sampler: str
    owner: str
    created_seconds: float
    env_ids: Sequence[str]
    num_workers: int
    policy_version: int
    lease_seconds: float | None
    lease_left_seconds: float | None
    quota: Quota


def quota_to_proto(quota: Quota) -> samplers_pb2.SamplerQuota:
    """Return limits as a message."""
    return message_from_record(samplers_pb2.SamplerQuota, quota)


def quota_from_proto(message: samplers_pb2.SamplerQuota) -> Quota:
    """Return the limits in a message."""
    return record_from_message(Quota, message)


@briefly
@dataclass(frozen=True)
class SettingChange:
    """A change of a server's setting, with its values as texts.

    Attributes:
        name: name of the setting, the key in the configuration file.
        before: the value that counted until now; empty on a server that asks nobody who they are.
        after: the new value, likewise.
    """

    name: str
    before: str
    after: str


@briefly
@dataclass(frozen=True)
class SettingsReload:
    """What became of a server's settings when it read them again.

    Attributes:
        changed: settings whose new values count from now on.
        needs_restart: settings whose new values do not count before the server is started again.
    """

    changed: Sequence[SettingChange]
    needs_restart: Sequence[SettingChange]


def reload_from_proto(message: settings_pb2.ReloadSettingsResponse) -> SettingsReload:
    """Return the changes in a message."""
    changed, needs_restart = (
        tuple(SettingChange(each.name, each.before, each.after) for each in changes)
        for changes in (message.changed, message.needs_restart)
    )
    return SettingsReload(changed, needs_restart)


def samplers_from_proto(message: samplers_pb2.ListSamplersResponse) -> Sequence[SamplerSummary]:
    """Return the samplers in a message."""
    return tuple(
        SamplerSummary(
            sampler=summary.sampler,
            owner=summary.owner,
            created_seconds=summary.created.ToNanoseconds() / 1e9,
            env_ids=tuple(summary.environment_ids),
            num_workers=summary.worker_count,
            policy_version=summary.policy_version,
            lease_seconds=seconds_of(summary, "lease"),
            lease_left_seconds=seconds_of(summary, "lease_left"),
            quota=quota_from_proto(summary.quota),
        )
        for summary in message.samplers
    )


def seconds_of(message: Any, field: str) -> float | None:
    """Return the seconds of a duration in a message; None if it is not set."""
    if not message.HasField(field):
        return None
    duration: Duration = getattr(message, field)
    return duration.ToNanoseconds() / 1e9


def duration_text(seconds: float) -> str:
    """Return a duration as people read it, such as `90 s`, `5 min` or `2.5 h`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
