"""Messages of evaluations, to and from what the pool takes and gives."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rollserve._codec.tensors import named_tensors_from_proto
from rollserve.reproducibility import reproducibility_to_proto
from rollserve.v1 import evaluation_pb2
from rollserve.v1 import sampler_service_pb2 as pb
from rollserve_server.errors import InvalidValueError
from rollserve_server.gateway.messages.environments import environment_from_proto
from rollserve_server.gateway.messages.fields import in_range, of_field
from rollserve_server.gateway.messages.sampling import (
    account_to_proto,
    column_format_from_proto,
    message_limit_from_proto,
    sampling_options_from_proto,
)
from rollserve_server.gateway.messages.summaries import summary_of
from rollserve_server.pool import (
    DISCARD,
    Evaluation,
    EvaluationRequest,
    MessageFormat,
    PopulationRequest,
)

if TYPE_CHECKING:
    from rollserve import EnvSpec
    from rollserve_server.pool import SamplingOptions

__all__ = [
    "evaluation_request_from_proto",
    "evaluation_to_proto",
    "population_evaluation_to_proto",
    "population_request_from_proto",
]

_MOST_EPISODES = 1 << 17
"""So that the answer is below what clients of gRPC take by default."""


def evaluation_request_from_proto(request: pb.EvaluateRequest, allowed_paths: Collection[Path]) -> EvaluationRequest:
    """What is to be evaluated.

    Raises:
        InvalidValueError: a field is out of range or malformed.
        NotAllowedError: see `check_paths`.
    """
    num_episodes = in_range("episode_count", request.episode_count, 1, _MOST_EPISODES)
    messages = DISCARD
    if request.HasField("episodes"):
        with of_field("episodes"):
            limit = message_limit_from_proto(request.episodes)
            messages = MessageFormat(limit, column_format_from_proto(request.episodes))
    options, env = _options_from_proto(request.options, allowed_paths)
    return EvaluationRequest(num_episodes, options, env, messages)


def population_request_from_proto(
    request: pb.EvaluatePopulationRequest, allowed_paths: Collection[Path]
) -> PopulationRequest:
    """The population that is to be evaluated; raises as `evaluation_request_from_proto`."""
    with of_field("parameters"):
        parameters = named_tensors_from_proto(request.parameters.tensors)
    num_members = max((len(value) for value in parameters.values() if value.ndim), default=1)
    most = max(_MOST_EPISODES // max(num_members, 1), 1)
    if num_members > _MOST_EPISODES:
        raise InvalidValueError.of("parameters", expected=f"at most {_MOST_EPISODES}", got=f"{num_members} members")
    num_episodes = in_range("episode_count", request.episode_count, 1, most)
    options, env = _options_from_proto(request.options, allowed_paths)
    return PopulationRequest(parameters, num_episodes, options, env, shares_episodes=not request.different_episodes)


def evaluation_to_proto(evaluation: Evaluation) -> evaluation_pb2.Evaluation:
    """The end of an evaluation."""
    _, returns, lengths, terminated, truncated = zip(*evaluation.outcomes, strict=True)
    account = evaluation.account
    return evaluation_pb2.Evaluation(
        returns=returns,
        lengths=lengths,
        terminated=terminated,
        truncated=truncated,
        return_summary=summary_of(np.array(returns)),
        length_summary=summary_of(np.array(lengths)),
        policy_version=account.policy_version,
        environment_version=account.env_version,
        seed=account.seed,
        first_episode_index=account.first_episode_index,
        reproducibility=reproducibility_to_proto(evaluation.reproducibility),
        account=account_to_proto(account),
    )


def population_evaluation_to_proto(evaluation: Evaluation) -> evaluation_pb2.PopulationEvaluation:
    """The end of an evaluation of a population."""
    account = evaluation.account
    return evaluation_pb2.PopulationEvaluation(
        returns=[outcome.total_reward for outcome in evaluation.outcomes],
        lengths=[outcome.length for outcome in evaluation.outcomes],
        member_count=evaluation.num_members,
        episode_count=len(evaluation.outcomes) // evaluation.num_members,
        step_count=sum(outcome.length for outcome in evaluation.outcomes),
        policy_version=account.policy_version,
        environment_version=account.env_version,
        seed=account.seed,
        first_episode_index=account.first_episode_index,
        reproducibility=reproducibility_to_proto(evaluation.reproducibility),
        account=account_to_proto(account),
    )


def _options_from_proto(
    options: pb.EvaluationOptions, allowed_paths: Collection[Path]
) -> tuple[SamplingOptions, EnvSpec | None]:
    """Return which episodes to evaluate, and the environment of its own that the evaluation has, if any."""
    with of_field("options"):
        env = None
        if options.HasField("environment"):
            if options.HasField("environment_version"):
                expected = "none beside an environment"
                raise InvalidValueError.of("environment_version", expected=expected, got=options.environment_version)
            with of_field("environment"):
                env = environment_from_proto(options.environment, allowed_paths)
        return sampling_options_from_proto(options), env
