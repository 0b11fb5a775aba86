"""Messages of sampling calls and of a sampler's state, to and from what the pool takes and gives."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from google.protobuf.duration_pb2 import Duration

from rollserve.environments import (
    env_spec_to_proto,
)
from rollserve.reproducibility import reproducibility_to_proto
from rollserve.spaces import space_to_proto
from rollserve.v1 import (
    agent_versions_pb2,
    episode_batch_pb2,
    evaluation_pb2,
    tensor_pb2,
)
from rollserve.v1 import sampler_service_pb2 as pb
from rollserve_server import __version__
from rollserve_server.envs import describe_space
from rollserve_server.errors import InvalidValueError, shorten
from rollserve_server.gateway.messages.agents import (
    exploration_from_proto,
)
from rollserve_server.gateway.messages.fields import MOST_FIRST_INDEX, MOST_STEPS, in_range, of_field, optional
from rollserve_server.pool import (
    Account,
    AtLeast,
    Beginning,
    Exactly,
    Fragments,
    MessageFormat,
    Progress,
    SampleRequest,
    SamplingOptions,
    Target,
)
from rollserve_server.sampling import COMPRESSIONS, ColumnFormat

if TYPE_CHECKING:
    from rollserve_server.pool import FailedEpisode, PoolStatus, WorkerStatus

__all__ = [
    "account_to_proto",
    "beginning_to_proto",
    "column_format_from_proto",
    "message_limit_from_proto",
    "progress_to_proto",
    "sample_request_from_proto",
    "sampling_options_from_proto",
    "status_to_proto",
]

_DEFAULT_MESSAGE_BYTES = (4 << 20) - (4 << 10)
"""Just below what gRPC's clients take by default."""
_LEAST_MESSAGE_BYTES, _MOST_MESSAGE_BYTES = 4 << 10, 256 << 20
_MOST_EPISODES = 1 << 40
"""More than anybody waits for; indices stay below 2**63, which is all that many languages have."""


def sample_request_from_proto(
    request: pb.ObtainSamplesRequest | pb.ObtainExactEpisodesRequest,
) -> SampleRequest:
    """What is to be sampled.

    Raises:
        InvalidValueError: a field is out of range.
    """
    target: Target | Fragments
    if isinstance(request, pb.ObtainSamplesRequest):
        num_steps = in_range("step_count", request.step_count, 1, MOST_STEPS)
        target = _fragments_from_proto(request, num_steps) if request.HasField("fragments") else AtLeast(num_steps)
    else:
        count = in_range("episode_count_per_worker", request.episode_count_per_worker, 1, _MOST_EPISODES)
        target = Exactly(count, request.skip_episode_count)
    options = request.options
    with of_field("options"):
        limit, columns = message_limit_from_proto(options), column_format_from_proto(options)
        columns = dataclasses.replace(columns, all_states=options.return_states)
    if options.HasField("first_episode_index") and not options.HasField("seed"):
        raise InvalidValueError.of(
            "options.first_episode_index", expected="options.seed beside it", got="an index without a seed"
        )
    if options.prefetch and (options.HasField("seed") or isinstance(target, Fragments)):
        came, expected = "prefetch beside a seed or fragments", "whole episodes of the sampler's own sequence"
        raise InvalidValueError.of("options.prefetch", expected=expected, got=came)
    with of_field("options"):
        sampling_options = sampling_options_from_proto(options)
    return SampleRequest(
        target,
        MessageFormat(limit, None if options.blackhole else columns),
        sampling_options,
        num_workers=optional(options, "worker_count"),
        prefetch=options.prefetch,
    )


def sampling_options_from_proto(options: pb.SamplingOptions | pb.EvaluationOptions) -> SamplingOptions:
    """Return which episodes to sample, and with which agent.

    Raises:
        InvalidValueError: a field is out of range.
    """
    if options.HasField("max_episode_length"):
        in_range("max_episode_length", options.max_episode_length, 1, MOST_STEPS)
    with of_field("exploration"):
        exploration = exploration_from_proto(options.exploration)
    return SamplingOptions(
        policy_version=optional(options, "policy_version"),
        expected_policy_version=optional(options, "expected_policy_version"),
        min_policy_version=optional(options, "min_policy_version"),
        env_version=optional(options, "environment_version"),
        seed=optional(options, "seed"),
        first_index=in_range("first_episode_index", options.first_episode_index, 0, MOST_FIRST_INDEX),
        max_episode_length=optional(options, "max_episode_length"),
        run=optional(options, "sampler_run"),
        exploration=exploration,
        skip_failed=options.skip_failed_episodes,
    )


def message_limit_from_proto(
    message: pb.SamplingOptions | evaluation_pb2.EpisodeDelivery | agent_versions_pb2.GetAgentParametersRequest,
) -> int:
    """The size that no message of a stream may exceed.

    Raises:
        InvalidValueError: it is out of range.
    """
    if not message.HasField("max_message_bytes"):
        return _DEFAULT_MESSAGE_BYTES
    return in_range("max_message_bytes", message.max_message_bytes, _LEAST_MESSAGE_BYTES, _MOST_MESSAGE_BYTES)


def beginning_to_proto(
    beginning: Beginning, shared_memory: episode_batch_pb2.SharedMemory | None = None
) -> episode_batch_pb2.Beginning:
    """What a call begins with, and the memory that its messages may go through."""
    return episode_batch_pb2.Beginning(
        seed=beginning.seed,
        first_episode_index=beginning.first_episode_index,
        policy_version=beginning.policy_version,
        environment_version=beginning.env_version,
        reproducibility=reproducibility_to_proto(beginning.reproducibility),
        sampler_run=beginning.run,
        row_count=beginning.num_rows,
        row_step_count=beginning.row_step_count,
        shared_memory=shared_memory,
        worker_count=beginning.num_workers,
    )


def progress_to_proto(progress: Progress) -> episode_batch_pb2.Progress:
    """How far a call is."""
    return episode_batch_pb2.Progress(simulated_step_count=progress.num_simulated_steps)


def account_to_proto(account: Account) -> episode_batch_pb2.Account:
    """The account of a call."""
    workers = [
        episode_batch_pb2.WorkerAccount(
            worker_index=index,
            simulated_step_count=worker.num_simulated_steps,
            step_count=worker.num_steps,
            episode_count=worker.num_episodes,
            sampling=_duration(worker.sampling_seconds),
            encoding=_duration(worker.encoding_seconds),
            missing_step_count=worker.num_missing_steps,
        )
        for index, worker in enumerate(account.workers)
    ]
    return episode_batch_pb2.Account(
        step_count=account.num_steps,
        episode_count=account.num_episodes,
        simulated_step_count=account.num_simulated_steps,
        carried_step_count=account.num_carried_steps,
        kept_step_count=account.num_kept_steps,
        superseded_step_count=account.num_superseded_steps,
        cancelled_step_count=account.num_cancelled_steps,
        lost_step_count=account.num_lost_steps,
        idle_step_count=account.num_idle_steps,
        retried_episode_count=account.num_retried_episodes,
        retry_reasons=account.retry_reasons,
        seed=account.seed,
        first_episode_index=account.first_episode_index,
        policy_version=account.policy_version,
        environment_version=account.env_version,
        dropped_infos=account.dropped_infos,
        workers=workers,
        queued=_duration(account.queued_seconds),
        waiting=_duration(account.waiting_seconds),
        sending=_duration(account.sending_seconds),
        elapsed=_duration(account.elapsed_seconds),
        broken_off_episode_count=account.num_broken_off_episodes,
        row_step_count=account.row_step_count,
        prefetched_step_count=account.num_prefetched_steps,
        discarded_step_count=account.num_discarded_steps,
        discarded_episode_count=account.num_discarded_episodes,
        failed_episode_count=account.env_failures.num_skipped,
        episode_failures=map(_episode_failure_to_proto, account.env_failures.reported.values()),
        straggler_episode_count=account.num_straggler_episodes,
        missing_step_count=account.num_missing_steps,
    )


def status_to_proto(sampler: str, status: PoolStatus) -> pb.GetSamplerResponse:
    """The state of a sampler."""
    workers = [
        pb.Worker(
            worker_index=worker.index,
            health=_health_to_proto(worker),
            row_count=worker.num_rows,
            simulated_step_count=worker.num_simulated_steps,
            process_id=worker.identity.process_id,
            host=worker.identity.host,
            restart_count=worker.num_restarts,
            last_failure=shorten(worker.last_failure),
        )
        for worker in status.workers
    ]
    counters = pb.Counters(
        completed_call_count=status.counters.num_completed_calls,
        failed_call_count=status.counters.num_failed_calls,
        cancelled_call_count=status.counters.num_cancelled_calls,
        step_count=status.counters.num_steps,
        episode_count=status.counters.num_episodes,
        simulated_step_count=status.num_simulated_steps,
        message_bytes=status.counters.message_bytes,
        uptime=_duration(status.uptime_seconds),
        environment_failure_count=status.counters.num_env_failures,
        retried_episode_count=status.counters.num_retried_episodes,
        failed_episode_count=status.counters.num_failed_episodes,
        worker_restart_count=status.num_worker_restarts,
    )
    return pb.GetSamplerResponse(
        sampler=sampler,
        server_version=__version__,
        environments=map(env_spec_to_proto, status.env_specs),
        environment_version=status.env_version,
        observation_space=space_to_proto(describe_space(status.env.observation_space)),
        action_space=space_to_proto(describe_space(status.env.action_space)),
        agent_kinds=status.agent_kinds,
        policy_version=status.policy_version,
        seed=status.seed,
        next_episode_index=status.next_index,
        workers=workers,
        counters=counters,
        reproducibility=reproducibility_to_proto(status.env.reproducibility),
        episodes_per_row=status.env.num_episodes_per_row or 0,
        min_healthy_worker_count=status.min_healthy_workers,
    )


def column_format_from_proto(options: pb.SamplingOptions | evaluation_pb2.EpisodeDelivery) -> ColumnFormat:
    """How columns may be written; raises InvalidValueError for a compression that is not set."""
    if tensor_pb2.COMPRESSION_UNSPECIFIED in options.accept_compression:
        raise InvalidValueError.of("accept_compression", expected="a value of Compression", got="one that is not set")
    # What is not known here may be so to other servers.
    known = (compression for compression in options.accept_compression if compression in COMPRESSIONS)
    return ColumnFormat(next(known, None), options.accept_frame_stacks)


def _fragments_from_proto(request: pb.ObtainSamplesRequest, num_steps: int) -> Fragments:
    fragments = request.fragments
    if request.options.HasField("first_episode_index"):
        expected = "none beside fragments, whose rows begin with episodes of their own"
        raise InvalidValueError.of(
            "options.first_episode_index", expected=expected, got=request.options.first_episode_index
        )
    in_range("fragments.row_step_count", fragments.row_step_count, 0, MOST_FIRST_INDEX)
    clock = optional(fragments, "row_step_count")
    fraction = fragments.fraction_of_workers if fragments.HasField("fraction_of_workers") else 1.0
    if not 0 < fraction <= 1:
        raise InvalidValueError.of(
            "fragments.fraction_of_workers", expected="a number over 0 and up to 1", got=fraction
        )
    return Fragments(num_steps, fragments.skip_step_count, fragments.soft_horizon, clock, fraction)


def _episode_failure_to_proto(failed: FailedEpisode) -> episode_batch_pb2.EpisodeFailure:
    return episode_batch_pb2.EpisodeFailure(
        episode_index=failed.index,
        worker_index=failed.worker,
        attempt_count=failed.num_attempts,
        skipped=failed.is_skipped,
        text=failed.short_text,
    )


def _health_to_proto(worker: WorkerStatus) -> pb.WorkerHealth.ValueType:
    if worker.is_leaving:
        return pb.WORKER_HEALTH_LEAVING
    if worker.healthy:
        return pb.WORKER_HEALTH_HEALTHY
    return pb.WORKER_HEALTH_FAILED if worker.given_up else pb.WORKER_HEALTH_LOST


def _duration(seconds: float) -> Duration:
    duration = Duration()
    duration.FromNanoseconds(round(seconds * 1e9))
    return duration
