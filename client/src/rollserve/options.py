"""Options of calls that sample and of calls that evaluate."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, get_args

from rollserve.agents import AgentUpdate  # noqa: TC001  # so that `typing.get_type_hints` finds it
from rollserve.progress import ProgressOption  # noqa: TC001  # as above
from rollserve_wire.checks import check_choice, check_type
from rollserve_wire.compression import CODECS, import_codec
from rollserve_wire.environments import EnvSpec  # noqa: TC001  # as above
from rollserve_wire.policy_map import PolicyMap

if TYPE_CHECKING:
    from rollserve_wire.v1 import tensor_pb2

__all__ = [
    "Compression",
    "DriveOptions",
    "EvaluationOptions",
    "PolicyMapOption",
    "SamplingOptions",
    "StepCount",
    "compressions_to_proto",
    "list_options",
]

_Class = TypeVar("_Class", bound=type)

PolicyMapOption = PolicyMap | Mapping[Any, Any] | Sequence[PolicyMap | Mapping[Any, Any]]
"""A map from agents to policies, or several by turns."""

Compression = Literal["lz4", "zstd"]
"""Lossless codec for columns: lz4 is faster, zstd compresses better."""

StepCount = Literal["env_steps", "agent_steps"]
"""Steps that count: steps of environments, or steps of all agents in them."""


class SamplingOptions(TypedDict, total=False):
    """Keyword arguments of every call that samples. Without a key, or with None for it, its default holds.

    >>> options: rollserve.SamplingOptions = {"seed": 7, "deterministic": True}  # doctest: +SKIP
    >>> batch = sampler.obtain_samples(10_000, **options)  # doctest: +SKIP

    Keys:
        agent: update of the agent for all workers, as `update_agent` takes it. The call makes it first, and samples
            with the new version, the batch's `policy_versions`. That takes less time than `update_agent` and the call.
            If the update fails, the call fails with the same error, and nothing has changed. At most 4 MiB; larger ones
            need `update_agent`. Not together with a version of the policy.
        seed: root seed of the episodes, from 0 to 2**64 - 1. The same seed, first episode index, policy and environment
            give the same episodes. By default, the sampler continues its own sequence, in which no episode occurs
            twice.
        first_episode_index: index of the first episode in the sequence of `seed`; 0 by default. Not for fragments.
        max_episode_length: number of steps after which an episode is truncated, counted over all of its fragments. By
            default the server's setting, or if it has none, only the environment's own limit holds.
        expected_policy_version: version that the current policy must have; otherwise the call fails with a
            PreconditionError. By default the version that this client set last, or a later one that it is setting, if
            `policy_version` is not given; see `shared` of `rollserve.connect`.
        expected_env_version: version that the current environment must have, in the same way.
        min_policy_version: oldest version that may act; the call fails with a PreconditionError if the version that
            would act is older.
        policy_version: version that acts, one of the last few that the server keeps; the current one by default.
        env_version: version of the environment, one of the last few that the server keeps; the current one by default.
        expected_num_workers: number of workers that the sampler must have; otherwise, such as after a `resize`, the
            call fails with a PreconditionError.
        timeout: seconds without progress after which the call ends with a DeadlineError; by default the timeout given
            to `connect`.
        deadline: seconds in total after which the call ends with a DeadlineError; no limit by default.
        compression: "lz4", "zstd" or a sequence of them, best first: codecs that the server may use for columns that
            they make smaller. By default the codecs given to `connect`; an empty sequence allows none.
        deterministic: whether the agent acts without randomness: the most likely action, or the mean. False by default.
        temperature: divisor of the logits of actions, from 1e-6 to 1e6. For a sequence of n numbers, at most 1024, the
            episode of index i has the number at position i modulo n. The same holds for the next two keys.
        noise_scale: factor of the standard deviations of actions, from 1e-6 to 1e6.
        epsilon: probability of random actions of an epsilon-greedy agent, from 0 to 1; it replaces the agent's own.
        frames_once: whether each frame of observations that are stacks of frames is sent once. The client restores the
            stacks, which are the same bit for bit. True by default.
        prefetch: whether workers continue after this call with what the same call would deliver next, until another
            call or an update arrives. Prefetching changes when results are ready, not what they are; the account counts
            what an update discards. Not with a seed, and not for fragments. False by default.
        return_states: whether agent_infos hold the recurrent state before each step, as `state/NAME` for each state of
            the agent. The states before the first step of each segment are always in `initial_states`. False by
            default.
        return_last_values: whether the batch has `last_values`, the value of each segment's last observation, by the
            version that acted. Learners' computations use it by default. Only for agents with an info `value`. False by
            default.
        return_last_states: whether the batch has `last_states`, the recurrent states after each segment's last step.
            False by default.
        return_spaces: whether the batch has the `observation_space` and `action_space` of the environment's version.
            False by default.
        deliver: names of the policies whose segments the batch has, in an environment with many agents; the others act
            alike and are left out. All by default.
        count: "agent_steps" to ask for whole episodes by the steps of all agents, also of those whose policies are not
            delivered, instead of by the environment's. Accounts count the environment's steps either way. Not for exact
            episodes and fragments. "env_steps" by default.
        observation_moments: whether `account.observation_moments`, or `batch.round.observation_moments` for rounds of a
            stream, has count, mean and variance of the delivered observations, for `RunningMoments`. False by default.
        return_discount: discount, from 0 to 1, of the returns that `account.return_moments`, or
            `batch.round.return_moments`, has moments of. Rows of `obtain_fragments` run a row sequence for each
            discount, and one without. No moments by default.
        blackhole: whether to discard what is sampled, to measure sampling alone. Only for streams: they deliver no
            batch, and the account counts what was discarded. False by default.
        skip_failed_episodes: whether to leave out episodes whose environments raise errors in every attempt, instead of
            failing the call. The indices of these episodes stay empty, and `account.num_failed_episodes` counts them.
            Not for fragments. False by default.
        progress: True to show a progress bar on standard error while the call runs, by rich, tqdm or plain characters;
            where standard error is neither a terminal nor a notebook, a line every 10 seconds. Or a function, called
            with a `rollserve.CallProgress` in the thread of the call when something arrives, at most ten times a
            second, and once all has arrived. Its errors cancel the call. False by default.
    """

    agent: AgentUpdate | None
    seed: int | None
    first_episode_index: int | None
    max_episode_length: int | None
    expected_policy_version: int | None
    expected_env_version: int | None
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
    deliver: Sequence[str] | None
    count: StepCount | None
    return_last_values: bool | None
    return_last_states: bool | None
    return_spaces: bool | None
    skip_failed_episodes: bool | None
    observation_moments: bool | None
    return_discount: float | None
    progress: ProgressOption | None


class DriveOptions(TypedDict, total=False):
    """Keyword arguments of `Sampler.drive`, which says what they are."""

    seed: int | None
    fragment_length: int
    max_episode_length: int | None
    agent_infos: Mapping[str, Any] | None
    infos: bool
    record: bool
    min_ready: int | None
    lease_seconds: float
    dataset: str | None
    metadata: Mapping[str, Any] | None
    to_reader: bool
    env_seeds: Sequence[int] | None
    agents: Sequence[str]
    deliver: Sequence[str]
    env_version: int | None
    policy_version: int | None
    timeout: float | None


class EvaluationOptions(TypedDict, total=False):
    """Keyword arguments of calls that evaluate. Without a key, or with None for it, its default holds.

    >>> result = sampler.evaluate(100, deterministic=True, env="CartPole-v1")  # doctest: +SKIP

    Keys:
        policy_version: version to evaluate, one of the last few that the server keeps; the current one by default.
        expected_policy_version: version that the current policy must have; otherwise the call fails with a
            PreconditionError. By default the version that this client set last, or a later one that it is setting, if
            `policy_version` is not given; see `shared` of `rollserve.connect`.
        expected_env_version: version that the current environment must have, in the same way.
        min_policy_version: oldest version that may act; the call fails with a PreconditionError if the version that
            would act is older.
        env: id or specification of another environment to act in, such as the sampler's own without wrappers that
            change rewards. The sampler's own environment stays as it is.
        env_version: version of the sampler's environment to act in; the current one by default. Not together with
            `env`.
        policy_map: which policies act in an environment with many agents, instead of the sampler's own map: a mapping
            as of `rollserve.Policies`, or a sequence of them: the episode of index i has the map at position i modulo
            their number. They may name all policies and versions that the sampler holds; versions count back from the
            version to evaluate; in a population from the members.
        seed: root seed of the episodes, from 0 to 2**64 - 1. The default is the same for every evaluation, so that all
            versions are measured with the same episodes.
        first_episode_index: index of the first episode in the sequence of the seed; 0 by default.
        max_episode_length: number of steps after which an episode is truncated; the server's setting by default.
        timeout: seconds without progress after which the call ends with a DeadlineError; by default the timeout given
            to `connect`.
        deadline: seconds in total after which the call ends with a DeadlineError; no limit by default.
        deterministic: whether the agent acts without randomness: the most likely action, or the mean. False by default.
        temperature: divisor of the logits of actions, from 1e-6 to 1e6. For a sequence of n numbers, at most 1024, the
            episode of index i has the number at position i modulo n. The same holds for the next two keys.
        noise_scale: factor of the standard deviations of actions, from 1e-6 to 1e6.
        epsilon: probability of random actions of an epsilon-greedy agent, from 0 to 1; it replaces the agent's own.
        skip_failed_episodes: whether to leave out episodes whose environments raise errors in every attempt, instead of
            failing the call; `account.num_failed_episodes` counts them. Not for populations. False by default.
        progress: True to show a progress bar on standard error while the call runs, by rich, tqdm or plain characters;
            where standard error is neither a terminal nor a notebook, a line every 10 seconds. Or a function, called
            with a `rollserve.CallProgress` in the thread of the call when something arrives, at most ten times a
            second, and once all has arrived. Its errors cancel the call. False by default.
    """

    policy_version: int | None
    expected_policy_version: int | None
    expected_env_version: int | None
    min_policy_version: int | None
    env: str | EnvSpec | None
    env_version: int | None
    policy_map: PolicyMapOption | None
    seed: int | None
    first_episode_index: int | None
    max_episode_length: int | None
    timeout: float | None
    deadline: float | None
    deterministic: bool | None
    temperature: float | Sequence[float] | None
    noise_scale: float | Sequence[float] | None
    epsilon: float | Sequence[float] | None
    skip_failed_episodes: bool | None
    progress: ProgressOption | None


def compressions_to_proto(
    compression: Compression | Sequence[Compression] | None,
) -> list[tensor_pb2.Compression.ValueType]:
    """Return the codecs that a caller accepts as the wire names them, in the same order.

    Raises:
        TypeError: neither a name nor a sequence of names.
        InvalidArgumentError: an unknown name.
        ModuleNotFoundError: a codec whose package is not installed; the message says how to install it.
    """
    names = [compression] if isinstance(compression, str) else compression or ()
    check_type("compression", names, Sequence, "a name or a sequence of names")
    for name in names:
        check_type("compression", name, str, "a name or a sequence of names")
        check_choice("compression", name, get_args(Compression))
        import_codec(name)
    return [CODECS[name] for name in names]


def list_options(cls: _Class) -> _Class:
    """Give the methods of a class, and of its bases, signatures that list their options.

    Without them, help and the completion of notebooks and shells see `**options` alone.
    """
    kinds = {f"Unpack[{kind.__name__}]": kind for kind in (SamplingOptions, EvaluationOptions)}
    for function in [function for base in cls.__mro__ for function in vars(base).values()]:
        annotations = getattr(function, "__annotations__", {})
        kind = kinds.get(annotations.get("options", ""))
        if kind is not None and not hasattr(function, "__signature__"):
            signature = inspect.signature(function)
            named = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
            options = [
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hint.__forward_arg__)
                for name, hint in kind.__annotations__.items()
            ]
            function.__signature__ = signature.replace(parameters=[*named, *options])
    return cls
