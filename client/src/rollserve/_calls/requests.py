"""What the synchronous and the asynchronous sampler share: requests from arguments, results from responses."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import grpc
import numpy as np

from rollserve._checks import check_flag, check_integer, check_type
from rollserve._codec.compression import Compression, compressions_to_proto
from rollserve._codec.parameter_updates import write_parameters_update
from rollserve.agents import Agent, agent_to_proto, parameters_to_proto
from rollserve.environments import EnvChange, EnvSpec, Wrapper, env_change_to_proto, env_spec_to_proto
from rollserve.errors import InvalidArgumentError
from rollserve.reasons import Reason
from rollserve.reproducibility import Reproducibility, reproducibility_from_proto
from rollserve.spaces import Space, space_from_proto
from rollserve.v1 import environment_pb2, tensor_pb2
from rollserve.v1 import sampler_service_pb2 as pb

__all__ = [
    "DEFAULT_MESSAGE_BYTES",
    "AgentUpdate",
    "EnvUpdate",
    "Reception",
    "RowEnvUpdates",
    "SamplingOptions",
    "check_joinable",
    "env_update_from_proto",
    "exact_episodes_request",
    "exploration_of",
    "fragments_request",
    "resize_request",
    "samples_request",
    "update_agent_request",
    "update_env_request",
]

DEFAULT_MESSAGE_BYTES = 8 << 20
"""The largest message that a sampler takes unless told otherwise. Most are far smaller; but the larger the steps, the
fewer of them go into one message, and each has a last observation beside them.
"""

AgentUpdate = Agent | Mapping[str, "np.ndarray"]
"""A full agent, or parameters of the one that is there by name: of an MLP all, of a model in ONNX or Python any."""

RowEnvUpdates = Sequence[EnvSpec | EnvChange | None]
"""A spec or change for each row of a worker. None leaves the row's environment as it is."""


class SamplingOptions(TypedDict, total=False):
    """Options of every call that samples, for its keyword arguments.

    Keys:
        seed: the root seed of the episodes, from 0 to 2**64 - 1. The same seed, first episode index, policy and
            environment give the same episodes. Without it the sampler goes on in its own sequence, where none comes
            twice.
        first_episode_index: the index of the first episode in the sequence of `seed`; 0 if not given. Not for
            fragments.
        max_episode_length: how many steps an episode may have, over all of its fragments: one that reaches it is
            truncated. As the server is set to unless given, else as many as the environment allows.
        expected_policy_version: fail with a PreconditionError if the current version is another.
        min_policy_version: fail with a PreconditionError if the version that would act is older.
        policy_version: the version that is to act, one of the last few, instead of the current one.
        env_version: the version of the environment to act in, instead of the current one.
        expected_num_workers: fail with a PreconditionError if there are more or fewer workers, as after a `resize`.
        timeout: seconds without progress after which the call ends with a DeadlineError; as given to `connect` unless
            given here.
        deadline: seconds that the whole call may take before it ends with a DeadlineError; no limit unless given.
        compression: "lz4", "zstd", or several, the best one first: how columns may come compressed, if that makes them
            smaller; as given to `connect` unless given here, and an empty sequence for none.
        deterministic: whether the agent acts without any chance: the best action, or the mean.
        temperature: what the logits of actions are divided by, from 1e-6 to 1e6. Of a sequence of up to 1024 numbers
            the episode of index i has the one at i modulo how many there are; the same is true of the next two.
        noise_scale: what the standard deviations of actions are multiplied by, from 1e-6 to 1e6.
        epsilon: how often an epsilon-greedy agent chooses at random, from 0 to 1, instead of what it says itself.
        frames_once: whether each frame of observations that are stacks of frames comes once, and the stacks are made
            again here: they are the same, bit for bit. True unless given.
        prefetch: whether workers go on after this call with what the same call would bring next, until another call or
            an update comes. Calls bring the same, only sooner; what an update throws away is accounted for. Without a
            seed, and not for fragments. False unless given.
        return_states: whether agent_infos tell with each step what a recurrent agent remembered before it, as
            `state/NAME` for each of its states. Those that segments begin with come anyway. False unless given.
        blackhole: whether to throw away what is sampled, to measure the sampling alone. For streams only: no batch
            comes, and the account tells how much it was. False unless given.
        skip_failed_episodes: whether to go on without episodes whose environments raise errors in every attempt, which
            would else fail the call: their indices stay empty, and `account.num_failed_episodes` counts them. Not for
            fragments. False unless given.
    """

    seed: int | None
    first_episode_index: int | None
    max_episode_length: int | None
    expected_policy_version: int | None
    min_policy_version: int | None
    policy_version: int | None
    env_version: int | None
    expected_num_workers: int | None
    timeout: float | None
    deadline: float | None
    compression: Compression | Sequence[Compression] | None
    frames_once: bool | None
    prefetch: bool | None
    blackhole: bool | None
    deterministic: bool | None
    temperature: float | Sequence[float] | None
    noise_scale: float | Sequence[float] | None
    epsilon: float | Sequence[float] | None
    return_states: bool | None
    skip_failed_episodes: bool | None


_UNSIGNED_OPTIONS = ("seed", "first_episode_index")
_SIGNED_OPTIONS = (
    "max_episode_length",
    "expected_policy_version",
    "min_policy_version",
    "policy_version",
    "env_version",
)
"""Options that are sent as integers of 64 bits."""
_FLAGS = ("frames_once", "prefetch", "blackhole", "deterministic", "return_states", "skip_failed_episodes")
"""Options that are truth values."""
_EXPLORATION_OPTIONS = ("temperature", "noise_scale", "epsilon")


@dataclass(frozen=True)
class Reception:
    """What a client takes.

    Attributes:
        max_message_bytes: the largest message; None for the server's default.
        compressions: how columns may come compressed if a call does not say, the best way first.
        shared_memory: whether messages may come through shared memory.
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
        """Of the arguments of `rollserve.connect`; raises as `compressions_to_proto` does."""
        check_flag("shared_memory", shared_memory)
        return cls(max_message_bytes, compressions_to_proto(compression), shared_memory)


@dataclass(frozen=True)
class EnvUpdate:
    """The workers' new environments.

    Attributes:
        env_version: their version.
        observation_space: where observations come from.
        action_space: where actions come from.
        reproducibility: what of their episodes comes again.
        num_rows: how many rows each worker steps at once for a call.
        num_episodes_per_row: how many episodes of each row make a block, if that is what comes again; else None.
    """

    env_version: int
    observation_space: Space
    action_space: Space
    reproducibility: Reproducibility
    num_rows: int
    num_episodes_per_row: int | None


def update_agent_request(
    sampler: str,
    agent: AgentUpdate | None,
    per_worker: Sequence[AgentUpdate] | None,
    skip_if_identical: bool = False,
) -> pb.UpdateAgentRequest | bytes:
    """The request for one agent for all, or one for each worker; serialized where that saves copies.

    Raises:
        TypeError: neither came, or both, or something that is no update.
        ValueError: an array's dtype has no place on the wire.
    """
    _check_exclusive("agent", agent, per_worker)
    check_flag("skip_if_identical", skip_if_identical)
    if isinstance(agent, Mapping):
        return write_parameters_update(sampler, agent, skip_if_identical=skip_if_identical)
    request = pb.UpdateAgentRequest(sampler=sampler, skip_if_identical=skip_if_identical)
    if per_worker is None:
        request.all_workers.CopyFrom(_agent_update("agent", agent))
    else:
        check_type("per_worker", per_worker, Sequence, "a sequence of updates")
        updates = [_agent_update(f"per_worker[{worker}]", update) for worker, update in enumerate(per_worker)]
        request.per_worker.CopyFrom(pb.AgentUpdatePerWorker(updates=updates))
    return request


def update_env_request(
    sampler: str,
    env: str | EnvSpec | EnvChange | RowEnvUpdates | None,
    kwargs: Mapping[str, object] | None,
    wrappers: Sequence[Wrapper],
    per_worker: Sequence[EnvSpec | EnvChange | RowEnvUpdates] | None,
) -> pb.UpdateEnvRequest:
    """The request for one update for all workers, by id, spec, change or rows, or one for each of them.

    Raises:
        TypeError: neither came, or both, or arguments beside a spec that has its own, or something that is no update.
        ValueError: an argument cannot be written as JSON.
    """
    _check_exclusive("env", env, per_worker)
    if isinstance(env, str):
        env = EnvSpec(env, kwargs or {}, wrappers)
    elif kwargs or wrappers:
        raise TypeError("kwargs and wrappers go with an id; an EnvSpec or EnvChange has its own")
    if per_worker is not None:
        check_type("per_worker", per_worker, Sequence, "a sequence of EnvSpecs, EnvChanges and lists of them")
        updates = [_env_update(f"per_worker[{worker}]", update) for worker, update in enumerate(per_worker)]
        return pb.UpdateEnvRequest(sampler=sampler, per_worker=pb.EnvironmentUpdatePerWorker(updates=updates))
    return pb.UpdateEnvRequest(sampler=sampler, all_workers=_env_update("env", env))


def resize_request(sampler: str, num_workers: int) -> pb.ResizePoolRequest:
    """The request for so many workers; raises as `samples_request` does."""
    check_integer("num_workers", num_workers, 32, signed=False)
    return pb.ResizePoolRequest(sampler=sampler, worker_count=num_workers)


def samples_request(
    sampler: str, num_steps: int, reception: Reception, options: SamplingOptions
) -> pb.ObtainSamplesRequest:
    """The request for at least a number of steps.

    Raises:
        TypeError: an option is unknown, or something is no integer.
        InvalidArgumentError: an integer is out of the range of those that can be sent.
    """
    check_integer("num_steps", num_steps, 64, signed=True)
    return pb.ObtainSamplesRequest(sampler=sampler, step_count=num_steps, options=_sampling_options(reception, options))


def fragments_request(
    sampler: str,
    num_steps: int,
    soft_horizon: bool,
    row_step_count: int | None,
    fraction_of_workers: float | None,
    reception: Reception,
    options: SamplingOptions,
) -> pb.ObtainSamplesRequest:
    """The request for exactly a number of steps; raises as `samples_request` does."""
    request = samples_request(sampler, num_steps, reception, options)
    check_flag("soft_horizon", soft_horizon)
    if row_step_count is not None:
        check_integer("row_step_count", row_step_count, 64, signed=False)
    if fraction_of_workers is not None:
        check_type("fraction_of_workers", fraction_of_workers, numbers.Real, "a number")
        fraction_of_workers = float(fraction_of_workers)
    request.fragments.CopyFrom(
        pb.Fragments(row_step_count=row_step_count, soft_horizon=soft_horizon, fraction_of_workers=fraction_of_workers)
    )
    return request


def exact_episodes_request(
    sampler: str, num_episodes_per_worker: int, reception: Reception, options: SamplingOptions
) -> pb.ObtainExactEpisodesRequest:
    """The request for a number of episodes of each worker; raises as `samples_request` does."""
    check_integer("num_episodes_per_worker", num_episodes_per_worker, 64, signed=True)
    return pb.ObtainExactEpisodesRequest(
        sampler=sampler,
        episode_count_per_worker=num_episodes_per_worker,
        options=_sampling_options(reception, options),
    )


def check_joinable(blackhole: bool | None) -> None:
    """Raises InvalidArgumentError if a call that throws away its batches is to make one of them."""
    if blackhole:
        text = "blackhole: True came, but there is no batch of what is thrown away: read a stream to its end instead"
        raise InvalidArgumentError(text, code=grpc.StatusCode.INVALID_ARGUMENT, reason=Reason.INVALID_VALUE)


def env_update_from_proto(response: pb.UpdateEnvResponse) -> EnvUpdate:
    """The result of an update of the environments."""
    return EnvUpdate(
        response.environment_version,
        space_from_proto(response.observation_space),
        space_from_proto(response.action_space),
        reproducibility_from_proto(response.reproducibility),
        response.row_count,
        response.episodes_per_row or None,
    )


def _sampling_options(reception: Reception, options: SamplingOptions) -> pb.SamplingOptions:
    unknown = options.keys() - SamplingOptions.__annotations__.keys()
    if unknown:
        raise TypeError(f"unexpected options: {', '.join(sorted(unknown))}")
    for name, value in options.items():
        if value is not None and name in (*_UNSIGNED_OPTIONS, *_SIGNED_OPTIONS):
            check_integer(name, value, 64, signed=name in _SIGNED_OPTIONS)
        if value is not None and name == "expected_num_workers":
            check_integer(name, value, 32, signed=False)
        if value is not None and name in _FLAGS:
            check_flag(name, value)
    compression = options.get("compression")
    return pb.SamplingOptions(
        seed=options.get("seed"),
        first_episode_index=options.get("first_episode_index"),
        max_episode_length=options.get("max_episode_length"),
        expected_policy_version=options.get("expected_policy_version"),
        min_policy_version=options.get("min_policy_version"),
        policy_version=options.get("policy_version"),
        environment_version=options.get("env_version"),
        worker_count=options.get("expected_num_workers"),
        max_message_bytes=reception.max_message_bytes,
        accept_compression=reception.compressions if compression is None else compressions_to_proto(compression),
        accept_frame_stacks=options.get("frames_once") is not False,
        prefetch=options.get("prefetch") or False,
        blackhole=options.get("blackhole") or False,
        accept_shared_memory=reception.shared_memory,
        exploration=exploration_of(options),
        return_states=options.get("return_states") or False,
        skip_failed_episodes=options.get("skip_failed_episodes") or False,
    )


def exploration_of(options: Mapping[str, Any]) -> pb.Exploration | None:
    """How freely the agent is to act, if the options say anything about it.

    Raises:
        TypeError: what says it is no number, nor a sequence of some.
    """
    exploration = pb.Exploration(deterministic=options.get("deterministic") or False)
    for name in _EXPLORATION_OPTIONS:
        value = options.get(name)
        if value is not None:
            getattr(exploration, f"{name}s").extend(_numbers(name, value))
    return exploration if exploration.ListFields() else None


def _numbers(name: str, value: Any) -> Sequence[float]:
    """One number or several, as a sequence."""
    if isinstance(value, numbers.Real):
        value = [value]
    check_type(name, value, Sequence | np.ndarray, "a number or a sequence of some")
    for position, element in enumerate(value):
        check_type(f"{name}[{position}]", element, numbers.Real, "a number")
    return [float(element) for element in value]


def _agent_update(name: str, update: AgentUpdate | None) -> pb.AgentUpdate:
    if isinstance(update, Mapping):
        return pb.AgentUpdate(parameters=parameters_to_proto(update))
    if not isinstance(update, Agent):
        raise TypeError(f"{name}: {type(update).__name__} came, an agent or a mapping of parameters was expected")
    return pb.AgentUpdate(agent=agent_to_proto(update))


def _env_update(name: str, update: object) -> environment_pb2.EnvironmentUpdate:
    """The update of a worker's environments."""
    if isinstance(update, Sequence) and not isinstance(update, str | bytes):
        updates = [_row_env_update(f"{name}[{row}]", element) for row, element in enumerate(update)]
        return environment_pb2.EnvironmentUpdate(per_row=environment_pb2.EnvironmentUpdatePerRow(updates=updates))
    if not isinstance(update, EnvSpec | EnvChange):
        one = "an EnvSpec, an EnvChange" if "[" in name else "an id, an EnvSpec, an EnvChange"
        expected = f"{one}, or a list with one for each row"
        raise TypeError(f"{name}: {type(update).__name__} came, {expected} was expected")
    return _row_env_update(name, update)


def _row_env_update(name: str, update: object) -> environment_pb2.EnvironmentUpdate:
    match update:
        case None:
            return environment_pb2.EnvironmentUpdate()
        case EnvSpec():
            return environment_pb2.EnvironmentUpdate(environment=env_spec_to_proto(update))
        case EnvChange():
            return environment_pb2.EnvironmentUpdate(change=env_change_to_proto(update))
    raise TypeError(f"{name}: {type(update).__name__} came, an EnvSpec, an EnvChange or None was expected")


def _check_exclusive(name: str, value: object, per_worker: object) -> None:
    if (value is None) == (per_worker is None):
        raise TypeError(f"exactly one of {name} and per_worker was expected")
