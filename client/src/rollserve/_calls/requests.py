"""Requests of both samplers, built from the arguments of their methods."""

from __future__ import annotations

import numbers
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import numpy as np

from rollserve.agents import (
    Agent,
    AgentChange,
    AgentUpdate,
    Policies,
    agent_to_proto,
    parameters_to_proto,
    with_moments,
)
from rollserve.options import Compression, SamplingOptions, StepCount, compressions_to_proto
from rollserve.progress_displays import check_progress
from rollserve.python_agents import agent_change_to_proto
from rollserve.status import Quota, quota_to_proto
from rollserve_wire.checks import (
    check_choice,
    check_count,
    check_flag,
    check_integer,
    check_known_options,
    check_names,
    check_seconds,
    check_text,
    check_type,
    type_error,
)
from rollserve_wire.environments import (
    EnvChange,
    EnvSpec,
    RowEnvUpdates,
    Wrapper,
    env_change_to_proto,
    env_spec_to_proto,
)
from rollserve_wire.errors import InvalidArgumentError, mismatch
from rollserve_wire.json_arguments import value_to_json
from rollserve_wire.parameter_updates import write_parameters_update
from rollserve_wire.policy_map import PolicyMap, policy_map_to_proto
from rollserve_wire.records import duration_to_proto
from rollserve_wire.tensors import named_tensors_to_proto
from rollserve_wire.v1 import environment_pb2, samplers_pb2, tensor_pb2
from rollserve_wire.v1 import sampler_service_pb2 as pb

if TYPE_CHECKING:
    from rollserve._calls.own_versions import OwnVersions
    from rollserve_wire.moments import RunningMoments

__all__ = [
    "DEFAULT_MESSAGE_BYTES",
    "ApplyUpdate",
    "Reception",
    "WhenFull",
    "call_environments_request",
    "check_joinable",
    "check_options",
    "checked_steps_per_row",
    "create_sampler_request",
    "drive_spec",
    "exact_episodes_request",
    "exploration_of",
    "fragments_request",
    "resize_request",
    "restore_request",
    "samples_request",
    "sampling_options",
    "stream_spec",
    "update_agent_request",
    "update_env_request",
]


DEFAULT_MESSAGE_BYTES = 8 << 20
"""Default size of the largest message of a stream, in bytes. Most messages are far smaller, but the larger the steps,
the fewer of them fit into one message, and each message has a last observation beside them."""

_MAX_LEASE_SECONDS = 1e9
_MAX_AGENT_BYTES = (4 << 20) - (4 << 10)
"""Largest size of an agent in a call that samples: what servers accept, less room for the other options."""

_UNSIGNED_OPTIONS = ("seed", "first_episode_index")
_SIGNED_OPTIONS = (
    "max_episode_length",
    "expected_policy_version",
    "expected_env_version",
    "min_policy_version",
    "policy_version",
    "env_version",
)
_POLICY_OPTIONS = ("policy_version", "min_policy_version", "expected_policy_version", "expected_env_version")
"""Options that a call with an agent of its own cannot have."""
_FLAGS = (
    "frames_once",
    "prefetch",
    "blackhole",
    "deterministic",
    "return_states",
    "return_last_values",
    "return_last_states",
    "return_spaces",
    "skip_failed_episodes",
    "observation_moments",
)
_EXPLORATION_OPTIONS = ("temperature", "noise_scale", "epsilon")

ApplyUpdate = Literal["next_fragment", "next_step", "next_episode"]
WhenFull = Literal["wait", "drop_oldest"]

_REFUSED = ("progress", "prefetch", "blackhole", "policy_version")


@dataclass(frozen=True)
class Reception:
    """Forms in which a client receives results.

    Attributes:
        max_message_bytes: size of the largest message; None for the server's default.
        compressions: codecs for columns, best first, in calls that do not name any.
        shared_memory: whether messages may be in shared memory.
    """

    max_message_bytes: int | None
    compressions: Sequence[tensor_pb2.Compression.ValueType]
    shared_memory: bool

    @classmethod
    def of(
        cls,
        max_message_bytes: int | None,
        compression: Compression | Sequence[Compression] | None,
        shared_memory: bool = False,
    ) -> Reception:
        """Return the reception for arguments of `rollserve.connect`; raises as `compressions_to_proto`."""
        check_flag("shared_memory", shared_memory)
        return cls(max_message_bytes, compressions_to_proto(compression), shared_memory)


def update_agent_request(
    sampler: str,
    own_versions: OwnVersions,
    agent: AgentUpdate | None,
    per_worker: Sequence[AgentUpdate | None] | None,
    skip_if_identical: bool = False,
    observation_moments: RunningMoments | Mapping[str, RunningMoments] | None = None,
) -> pb.UpdateAgentRequest | bytes:
    """Return the request for an update of the agent, serialized if that saves copies.

    Raises:
        TypeError: both or neither of `agent` and `per_worker`, a value that is not an update, or an agent that has no
            parameters that moments could be.
        ValueError: a dtype that the wire does not have.
    """
    _check_exclusive("agent", agent, per_worker)
    agent = Policies.of(agent) or agent
    if observation_moments is not None:
        agent = None if agent is None else with_moments(agent, observation_moments)
        per_worker = per_worker and [
            None if update is None else with_moments(update, observation_moments) for update in per_worker
        ]
    check_flag("skip_if_identical", skip_if_identical)
    request = pb.UpdateAgentRequest(sampler=sampler, skip_if_identical=skip_if_identical)
    if per_worker is not None:
        check_type("per_worker", per_worker, Sequence, "a sequence of updates")
    keeps_any = not all(isinstance(update, Agent) for update in per_worker or (agent,))
    own_versions.expect_in_agent_update(request, keeps_any=keeps_any)
    if isinstance(agent, Mapping):
        return write_parameters_update(request, cast("Mapping[str, np.ndarray]", agent))
    if per_worker is None:
        request.all_workers.CopyFrom(_agent_update("agent", agent))
    else:
        updates = [
            pb.AgentUpdate() if update is None else _agent_update(f"per_worker[{worker}]", update)
            for worker, update in enumerate(per_worker)
        ]
        request.per_worker.CopyFrom(pb.AgentUpdatePerWorker(updates=updates))
    return request


def update_env_request(
    sampler: str,
    own_versions: OwnVersions,
    env: str | EnvSpec | EnvChange | RowEnvUpdates | None,
    kwargs: Mapping[str, object] | None,
    wrappers: Sequence[Wrapper],
    per_worker: Sequence[EnvSpec | EnvChange | RowEnvUpdates | None] | None,
) -> pb.UpdateEnvRequest:
    """Return the request for an update of the environments.

    Raises:
        TypeError: both or neither of `env` and `per_worker`, `kwargs` or `wrappers` without an id, or a value that is
            not an update.
        ValueError: an argument that JSON cannot hold.
    """
    _check_exclusive("env", env, per_worker)
    if isinstance(env, str):
        env = EnvSpec(env, kwargs or {}, wrappers)
    elif kwargs or wrappers:
        name = "kwargs" if kwargs else "wrappers"
        hint = "an EnvSpec or EnvChange has its own"
        raise TypeError(f"{name}: {mismatch('an id for env', type(env).__name__, hint)}")
    if per_worker is None:
        updates = [_env_update("env", env)]
        request = pb.UpdateEnvRequest(sampler=sampler, all_workers=updates[0])
    else:
        check_type("per_worker", per_worker, Sequence, "a sequence of EnvSpecs, EnvChanges and lists of them")
        updates = [
            environment_pb2.EnvironmentUpdate() if update is None else _env_update(f"per_worker[{worker}]", update)
            for worker, update in enumerate(per_worker)
        ]
        request = pb.UpdateEnvRequest(sampler=sampler, per_worker=pb.EnvironmentUpdatePerWorker(updates=updates))
    rows = [row for update in updates for row in update.per_row.updates or (update,)]
    own_versions.expect_in_env_update(request, keeps_any=not all(row.HasField("environment") for row in rows))
    return request


def call_environments_request(
    sampler: str, own_versions: OwnVersions, method: str, arguments: Sequence[object], env_version: int | None
) -> pb.CallEnvironmentsRequest:
    """Return the request for the values of a method of the environments.

    Raises:
        TypeError: a method that is not a string, or a version that is not an integer.
        ValueError: an argument that JSON cannot hold.
    """
    check_text("method", method)
    texts = [value_to_json(f"arguments[{position}]", argument) for position, argument in enumerate(arguments)]
    request = pb.CallEnvironmentsRequest(sampler=sampler, method=method, arguments_json=texts)
    if env_version is not None:
        check_integer("env_version", env_version, 64, signed=True)
        request.environment_version = env_version
    own_versions.expect_in_env_call(request)
    return request


def create_sampler_request(
    sampler: str,
    env: str | EnvSpec,
    kwargs: Mapping[str, object] | None,
    wrappers: Sequence[Wrapper],
    num_workers: int,
    seed: int | None,
    lease_seconds: float | None,
    quota: Quota | None,
    exist_ok: bool,
) -> samplers_pb2.CreateSamplerRequest:
    """Return the request for a new sampler.

    Raises:
        TypeError: an argument of the wrong type.
        InvalidArgumentError: an argument out of range.
        ValueError: an argument that JSON cannot hold.
    """
    check_type("env", env, str | EnvSpec, "an id or an EnvSpec")
    if isinstance(env, EnvSpec) and (kwargs is not None or wrappers):
        raise TypeError(f"kwargs, wrappers: {mismatch('none beside an EnvSpec', 'some')}")
    spec = env if isinstance(env, EnvSpec) else EnvSpec(env, kwargs or {}, tuple(wrappers))
    check_count("num_workers", num_workers)
    check_flag("exist_ok", exist_ok)
    if seed is not None:
        check_integer("seed", seed, 64, signed=False)
    if lease_seconds is not None:
        check_seconds("lease_seconds", lease_seconds, positive=False)
        if lease_seconds > _MAX_LEASE_SECONDS:
            raise InvalidArgumentError.of("lease_seconds", expected="at most 1e9, or 0 for no end", got=lease_seconds)
    request = samplers_pb2.CreateSamplerRequest(
        sampler=sampler, environment=env_spec_to_proto(spec), worker_count=num_workers, seed=seed, exist_ok=exist_ok
    )
    if lease_seconds is not None:
        request.lease.CopyFrom(duration_to_proto(lease_seconds))
    if quota is not None:
        check_type("quota", quota, Quota, "a Quota")
        request.quota.CopyFrom(quota_to_proto(quota))
    return request


def resize_request(sampler: str, num_workers: int) -> pb.ResizePoolRequest:
    """Return the request for a number of workers; raises as `samples_request`."""
    check_integer("num_workers", num_workers, 32, signed=False)
    return pb.ResizePoolRequest(sampler=sampler, worker_count=num_workers)


def restore_request(
    sampler: str, own_versions: OwnVersions, saved: bytes | str | PathLike[str]
) -> samplers_pb2.RestoreSamplerRequest:
    """Return the request that restores a sampler; for the arguments, see `rollserve.Sampler.restore`.

    Raises:
        TypeError: neither bytes nor a path.
        OSError: the file cannot be read.
    """
    check_type("saved", saved, bytes | str | PathLike, "the bytes of a saved sampler, or a path")
    data = saved if isinstance(saved, bytes) else Path(saved).read_bytes()
    return samplers_pb2.RestoreSamplerRequest(sampler=sampler, data=data, client_id=own_versions.client_id)


def samples_request(
    sampler: str, num_steps: int, reception: Reception, options: SamplingOptions
) -> pb.ObtainSamplesRequest:
    """Return the request for whole episodes with at least a number of steps.

    Raises:
        TypeError: an unknown option, or an argument of the wrong type.
        InvalidArgumentError: an integer out of range.
    """
    check_integer("num_steps", num_steps, 64, signed=True)
    return pb.ObtainSamplesRequest(sampler=sampler, step_count=num_steps, options=sampling_options(reception, options))


def fragments_request(
    sampler: str,
    num_steps: int,
    soft_horizon: bool,
    row_step_count: int | None,
    fraction_of_workers: float | None,
    fraction_of_samples: float | None,
    reception: Reception,
    options: SamplingOptions,
) -> pb.ObtainSamplesRequest:
    """Return the request for fragments with exactly a number of steps; raises as `samples_request`."""
    request = samples_request(sampler, num_steps, reception, options)
    check_flag("soft_horizon", soft_horizon)
    if row_step_count is not None:
        check_integer("row_step_count", row_step_count, 64, signed=False)
    request.fragments.CopyFrom(pb.Fragments(row_step_count=row_step_count, soft_horizon=soft_horizon))
    fractions = {"fraction_of_workers": fraction_of_workers, "fraction_of_samples": fraction_of_samples}
    for name, fraction in fractions.items():
        if fraction is not None:
            check_type(name, fraction, numbers.Real, "a number")
            setattr(request.fragments, name, float(fraction))
    return request


def checked_steps_per_row(num_steps: int | None, steps_per_row: int | None) -> int:
    """Return a number of steps of each row; raise TypeError if there is none, or another number of steps beside it."""
    if num_steps is not None or steps_per_row is None:
        expected = "either num_steps or steps_per_row"
        raise TypeError(f"num_steps: {mismatch(expected, 'neither' if num_steps is None else 'both')}")
    check_count("steps_per_row", steps_per_row)
    return operator.index(steps_per_row)


def exact_episodes_request(
    sampler: str, num_episodes_per_worker: int, reception: Reception, options: SamplingOptions
) -> pb.ObtainExactEpisodesRequest:
    """Return the request for a number of episodes of each worker; raises as `samples_request`."""
    check_integer("num_episodes_per_worker", num_episodes_per_worker, 64, signed=True)
    return pb.ObtainExactEpisodesRequest(
        sampler=sampler,
        episode_count_per_worker=num_episodes_per_worker,
        options=sampling_options(reception, options),
    )


def check_joinable(blackhole: bool | None) -> None:
    """Raise InvalidArgumentError if a call that returns a batch is to discard its batches."""
    if blackhole:
        expected, hint = "False for a call that returns a batch", "read a stream to its end instead"
        raise InvalidArgumentError.of("blackhole", expected=expected, got=blackhole, hint=hint)


def check_options(options: Mapping[str, Any], known: type) -> None:
    """Check the names of options, and those values that are integers of 64 bits or truth values.

    Raises:
        TypeError: an option that is not a key of the TypedDict `known`, or a value of the wrong type.
        InvalidArgumentError: an integer out of range.
    """
    if "soft_horizon" in options:
        hint = "a whole episode is a function of its seed and index, and never begins where another one ended"
        raise TypeError(f"soft_horizon: {mismatch('a call for fragments', 'one for whole episodes', hint)}")
    check_known_options(options, known)
    for name, value in options.items():
        if value is not None and name in (*_UNSIGNED_OPTIONS, *_SIGNED_OPTIONS):
            check_integer(name, value, 64, signed=name in _SIGNED_OPTIONS)
        if value is not None and name in _FLAGS:
            check_flag(name, value)
        if name == "progress":
            check_progress(value)


def exploration_of(options: Mapping[str, Any]) -> pb.Exploration | None:
    """Return how freely the agent acts, if the options say anything about it.

    Raises:
        TypeError: neither a number nor a sequence of numbers.
    """
    exploration = pb.Exploration(deterministic=options.get("deterministic") or False)
    for name in _EXPLORATION_OPTIONS:
        value = options.get(name)
        if value is not None:
            getattr(exploration, f"{name}s").extend(_numbers(name, value))
    return exploration if exploration.ListFields() else None


def sampling_options(reception: Reception, options: SamplingOptions) -> pb.SamplingOptions:
    """Return the options of a sampling call; raises as `samples_request`."""
    check_options(options, SamplingOptions)
    num_workers, compression = options.get("expected_num_workers"), options.get("compression")
    if num_workers is not None:
        check_integer("expected_num_workers", num_workers, 32, signed=False)
    if (discount := options.get("return_discount")) is not None:
        check_type("return_discount", discount, numbers.Real, "a number from 0 to 1")
    deliver = options.get("deliver") or ()
    check_names("deliver", deliver)
    count = options.get("count") or "env_steps"
    check_choice("count", count, get_args(StepCount))
    return pb.SamplingOptions(
        deliver_policies=deliver,
        seed=options.get("seed"),
        first_episode_index=options.get("first_episode_index"),
        max_episode_length=options.get("max_episode_length"),
        expected_policy_version=options.get("expected_policy_version"),
        expected_environment_version=options.get("expected_env_version"),
        min_policy_version=options.get("min_policy_version"),
        policy_version=options.get("policy_version"),
        environment_version=options.get("env_version"),
        worker_count=num_workers,
        max_message_bytes=reception.max_message_bytes,
        accept_compression=reception.compressions if compression is None else compressions_to_proto(compression),
        accept_frame_stacks=options.get("frames_once") is not False,
        prefetch=options.get("prefetch") or False,
        blackhole=options.get("blackhole") or False,
        accept_shared_memory=reception.shared_memory,
        exploration=exploration_of(options),
        return_states=options.get("return_states") or False,
        return_last_values=options.get("return_last_values") or False,
        return_last_states=options.get("return_last_states") or False,
        return_returns_before=True,
        return_spaces=options.get("return_spaces") or False,
        skip_failed_episodes=options.get("skip_failed_episodes") or False,
        observation_moments=options.get("observation_moments") or False,
        return_discount=discount,
        accept_joined=True,
        agent_update=_sent_agent_update(options),
        count_agent_steps=count == "agent_steps",
    )


def _sent_agent_update(options: SamplingOptions) -> pb.AgentUpdate | None:
    """Return the update that a call makes, if the options have one, whose size a call may have."""
    agent = options.get("agent")
    if agent is None:
        return None
    for name, value in options.items():
        if name in _POLICY_OPTIONS and value is not None:
            raise InvalidArgumentError.of(name, expected="none beside an agent", got=value)
    update = _agent_update("agent", agent)
    if update.ByteSize() > _MAX_AGENT_BYTES:
        expected, got = f"at most {_MAX_AGENT_BYTES} bytes in a call that samples", f"{update.ByteSize()} bytes"
        raise InvalidArgumentError.of("agent", expected=expected, got=got, hint="call update_agent first")
    return update


def _numbers(name: str, value: Any) -> Sequence[float]:
    """Return one number or several as a sequence."""
    if isinstance(value, numbers.Real):
        value = [value]
    check_type(name, value, Sequence | np.ndarray, "a number or a sequence of numbers")
    for position, element in enumerate(value):
        check_type(f"{name}[{position}]", element, numbers.Real, "a number")
    return [float(element) for element in value]


def _agent_update(name: str, update: AgentUpdate | None) -> pb.AgentUpdate:
    policies = Policies.of(update)
    if policies is not None:
        return pb.AgentUpdate(policies=_policy_updates(name, policies))
    if isinstance(update, Mapping):
        return pb.AgentUpdate(parameters=parameters_to_proto(cast("Mapping[str, np.ndarray]", update)))
    if isinstance(update, AgentChange):
        return pb.AgentUpdate(change=agent_change_to_proto(update))
    if not isinstance(update, Agent):
        raise type_error(name, "an agent, a mapping of parameters or an AgentChange", update)
    return pb.AgentUpdate(agent=agent_to_proto(update))


def _policy_updates(name: str, policies: Policies) -> pb.PolicyUpdates:
    updates = {policy: _agent_update(f"{name}[{policy!r}]", update) for policy, update in policies.updates.items()}
    policy_map = None if policies.policy_map is None else policy_map_to_proto(PolicyMap.of(policies.policy_map))
    return pb.PolicyUpdates(policies=updates, policy_map=policy_map)


def _env_update(name: str, update: object) -> environment_pb2.EnvironmentUpdate:
    """Return the update of the environments of a worker, or of all workers."""
    if isinstance(update, Sequence) and not isinstance(update, str | bytes):
        updates = [_row_env_update(f"{name}[{row}]", element) for row, element in enumerate(update)]
        return environment_pb2.EnvironmentUpdate(per_row=environment_pb2.EnvironmentUpdatePerRow(updates=updates))
    if not isinstance(update, EnvSpec | EnvChange):
        single = "an EnvSpec, an EnvChange" if "[" in name else "an id, an EnvSpec, an EnvChange"
        raise type_error(name, f"{single}, or a list with one for each row", update)
    return _row_env_update(name, update)


def _row_env_update(name: str, update: object) -> environment_pb2.EnvironmentUpdate:
    match update:
        case None:
            return environment_pb2.EnvironmentUpdate()
        case EnvSpec():
            return environment_pb2.EnvironmentUpdate(environment=env_spec_to_proto(update))
        case EnvChange():
            return environment_pb2.EnvironmentUpdate(change=env_change_to_proto(update))
    raise type_error(name, "an EnvSpec, an EnvChange or None", update)


def _check_exclusive(name: str, value: object, per_worker: object) -> None:
    if (value is None) == (per_worker is None):
        got = "neither" if value is None else "both"
        raise TypeError(f"{name}: {mismatch(f'exactly one of {name} and per_worker', got)}")


def stream_spec(
    sampler: str,
    reception: Reception,
    *,
    num_steps: int | None,
    fragment_length: int | None,
    soft_horizon: bool,
    row_step_count: int | None,
    total_num_steps: int | None,
    apply_update: ApplyUpdate,
    max_policy_lag: int | None,
    max_ahead_steps: int | None,
    max_ahead_bytes: int | None,
    max_steps_per_version: int | None,
    when_full: WhenFull,
    buffer_rounds: int | None,
    options: SamplingOptions,
) -> pb.StreamSpec:
    """Return what a stream samples.

    Raises:
        TypeError: an unknown option, an argument of the wrong type, or both or neither of `num_steps` and
            `fragment_length`.
        InvalidArgumentError: an argument out of range, or an option that streams do not have.
    """
    if (num_steps is None) == (fragment_length is None):
        got = "neither" if num_steps is None else "both"
        raise TypeError(f"num_steps, fragment_length: {mismatch('one of them', got)}")
    for name in _REFUSED:
        if (value := options.get(name)) not in (None, False):
            raise InvalidArgumentError.of(name, expected="none for a stream", got=value)
    check_choice("apply_update", apply_update, get_args(ApplyUpdate))
    check_choice("when_full", when_full, get_args(WhenFull))
    bounds: dict[str, Any] = {
        "step_count": _count("total_num_steps", total_num_steps, 63),
        "max_policy_lag": _count("max_policy_lag", max_policy_lag, 32, minimum=0),
        "max_ahead_steps": _count("max_ahead_steps", max_ahead_steps, 63),
        "max_ahead_bytes": _count("max_ahead_bytes", max_ahead_bytes, 63),
        "max_steps_per_version": _count("max_steps_per_version", max_steps_per_version, 63),
        "max_unread_rounds": max(_count("buffer_rounds", buffer_rounds, 31, minimum=0) or 0, 1),
    }
    spec = pb.StreamSpec(
        sampler=sampler,
        options=sampling_options(reception, options),
        apply_update=pb.ApplyUpdate.Value(f"APPLY_UPDATE_{apply_update.upper()}"),
        when_full=pb.WhenFull.Value(f"WHEN_FULL_{when_full.upper()}"),
        **bounds,
    )
    check_flag("soft_horizon", soft_horizon)
    if num_steps is not None:
        for name, value in (("soft_horizon", soft_horizon or None), ("row_step_count", row_step_count)):
            if value is not None:
                raise InvalidArgumentError.of(name, expected="none for whole episodes", got=value)
        spec.episodes.step_count = _count("num_steps", num_steps, 63) or 0
    else:
        fragments = pb.StreamedFragments(soft_horizon=soft_horizon)
        fragments.fragment_length = _count("fragment_length", fragment_length, 63) or 0
        if row_step_count is not None:
            check_integer("row_step_count", row_step_count, 64, signed=False)
            fragments.row_step_count = row_step_count
        spec.fragments.CopyFrom(fragments)
    return spec


def drive_spec(
    sampler: str,
    reception: Reception,
    *,
    env_seeds: Sequence[int] | None,
    fragment_length: int,
    agent_infos: Mapping[str, Any],
    infos: bool,
    record: bool,
    min_ready: int | None,
    lease_seconds: float,
    agents: Sequence[str],
    dataset: str | None,
    to_reader: bool,
    options: SamplingOptions,
) -> pb.DriveSpec:
    """Return what a session drives.

    Raises:
        TypeError: an argument of the wrong type.
        InvalidArgumentError: an argument out of range.
    """
    check_flag("infos", infos)
    check_flag("record", record)
    check_names("agents", agents)
    if dataset is not None:
        check_type("dataset", dataset, str, "an id such as cartpole/expert-v0")
    check_flag("to_reader", to_reader)
    has_no_rounds = not record and dataset is None and not to_reader
    sent = sampling_options(reception, {**options, "return_spaces": True, "blackhole": has_no_rounds})
    sent.ClearField("accept_joined")
    seeds = [] if env_seeds is None else list(env_seeds)
    for row, seed in enumerate(seeds):
        check_integer(f"env_seeds[{row}]", seed, 32, signed=False)
    return pb.DriveSpec(
        sampler=sampler,
        options=sent,
        fragment_length=_count("fragment_length", fragment_length, 63) or 0,
        agent_infos=named_tensors_to_proto(info_forms(agent_infos)),
        return_infos=infos,
        min_ready_row_count=_count("min_ready", min_ready, 63, minimum=0) or 0,
        lease_seconds=lease_seconds,
        environment_seeds=map(operator.index, seeds),
        agents=agents,
        dataset=dataset or "",
        to_reader=to_reader,
    )


def info_forms(examples: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return an array (0, *I) for an example of each info."""
    arrays = {name: np.asarray(example) for name, example in examples.items()}
    return {name: np.empty((0, *array.shape), array.dtype) for name, array in arrays.items()}


def _count(name: str, value: int | None, num_bits: int, *, minimum: int = 1) -> int | None:
    """Return a number that may be left out, once it is checked."""
    if value is None:
        return None
    check_integer(name, value, num_bits, signed=False)
    if value < minimum:
        raise InvalidArgumentError.of(name, expected=f"at least {minimum}", got=value)
    return value
