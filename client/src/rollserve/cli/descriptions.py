"""Samplers, their workers and environments as text and JSON."""

from __future__ import annotations

import dataclasses
import enum
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rollserve_wire.errors import mismatch
from rollserve_wire.spaces import Space

if TYPE_CHECKING:
    from rollserve.status import EnvProfile, SamplerStatus, SamplerSummary, WorkerStatus
    from rollserve_wire.environments import EnvSpec

__all__ = ["describe", "table_of", "to_json"]


def describe(status: SamplerStatus) -> str:
    """Return lines about a sampler, its environments, agent, counters and workers."""
    counters = status.counters
    lines = [
        f"sampler {status.sampler}, server {status.server_version}, up {counters.uptime_seconds:.0f} s",
        f"environment: {_describe_envs(status.envs)} (version {status.env_version})",
        _describe_quota(status),
        *([f"hidden arguments: {', '.join(status.hidden_arguments)}"] if status.hidden_arguments else ()),
        *map(_describe_profile, status.profiles),
        f"observations: {status.observation_space}, actions: {status.action_space}",
        f"agent: {', '.join(status.agent_kinds) or 'none yet'} (version {status.policy_version})",
        *([f"policies: {_describe_policies(status.policies)}"] if status.policies else ()),
        f"seed {status.seed}, next episode {status.next_episode_index}, reproducible by {status.reproducibility.value}",
        f"calls: {counters.num_completed_calls} completed, {counters.num_failed_calls} failed, "
        f"{counters.num_cancelled_calls} cancelled",
        f"delivered: {counters.num_episodes} episodes, {counters.num_steps} steps, {counters.message_bytes} bytes; "
        f"simulated: {counters.num_simulated_steps} steps",
        f"faults: {counters.num_env_failures} errors of environments, {counters.num_retried_episodes} episodes "
        f"retried, {counters.num_failed_episodes} skipped",
        f"stragglers: {counters.num_straggler_episodes} episodes started a second time on another worker",
        *([f"not finite: {number} delivered steps"] if (number := counters.num_non_finite_steps) else ()),
    ]
    return "\n".join([*lines, *map(_describe_worker, status.workers)])


def table_of(samplers: Sequence[SamplerSummary]) -> str:
    """Return a table with a line for each sampler."""
    rows = [("SAMPLER", "OWNER", "WORKERS", "POLICY", "LEASE LEFT", "ENVIRONMENT")]
    for each in samplers:
        lease = "-" if each.lease_left_seconds is None else f"{each.lease_left_seconds:.0f} s"
        row = each.sampler, each.owner or "-", str(each.num_workers), str(each.policy_version), lease
        rows.append((*row, ", ".join(each.env_ids)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _describe_policies(policies: Mapping[str, int]) -> str:
    return ", ".join(f"{name} (version {version})" for name, version in sorted(policies.items()))


def _describe_quota(status: SamplerStatus) -> str:
    quota = status.quota
    limits = {
        "workers": quota.num_workers,
        "rows": quota.num_rows,
        "bytes of results": quota.result_bytes,
        "calls at a time": quota.num_calls,
        "steps/s": quota.steps_per_second,
    }
    lease = "no lease" if status.lease_seconds is None else f"lease {status.lease_seconds:g} s"
    limited = ", ".join(f"{value:,.15g} {name}" for name, value in limits.items() if value)
    return f"owner {status.owner or 'none'}, {lease}, at most {limited or 'anything'}"


def _describe_profile(profile: EnvProfile) -> str:
    properties = profile.arguments.get("properties")
    names = ", ".join(properties) if isinstance(properties, dict) else ""
    text = f"profile:{profile.name}({names})"
    return f"{text}: {profile.description}" if profile.description else text


def _describe_worker(worker: WorkerStatus) -> str:
    health = "given up for now" if worker.has_failed else "healthy" if worker.healthy else "lost"
    health = "leaving" if worker.leaving else health
    text = f"worker {worker.worker_index}: {health}, {worker.num_rows} rows, {worker.num_simulated_steps} steps, "
    text += f"process {worker.process_id} on {worker.host}" if worker.host else "process unknown"
    if worker.num_restarts:
        text += f"; replaced {worker.num_restarts} times, last reason: {worker.last_failure}"
    return text


def _describe_envs(specs: Sequence[EnvSpec]) -> str:
    """Describe the environments in their order; equal neighbours are described once, with their number."""
    groups = [(text, len(list(equal))) for text, equal in itertools.groupby(map(_describe_env, specs))]
    return ", ".join(text if count == 1 else f"{count} x {text}" for text, count in groups)


def _describe_env(spec: EnvSpec) -> str:
    arguments = ", ".join(f"{name}={value!r}" for name, value in spec.kwargs.items())
    around = [wrapper.name for wrapper in spec.wrappers] + [type(transform).__name__ for transform in spec.transforms]
    return " < ".join([f"{spec.id}({arguments})" if arguments else spec.id, *around])


def to_json(value: object) -> object:
    """Return what stands for a value that `json` cannot write by itself."""
    if isinstance(value, Space):
        return str(value)
    if isinstance(value, enum.Enum):
        return value.value
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(mismatch("a value that JSON can hold", type(value).__name__))
