"""Evaluations: their requests, and their results."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rollserve_server.envs import environment_from_proto
from rollserve_server.errors import InvalidValueError, listed
from rollserve_server.fields import in_field, in_range, set_fields
from rollserve_server.gateway.messages.accounts import account_to_proto
from rollserve_server.gateway.messages.agents import policy_map_in
from rollserve_server.gateway.messages.sample_requests import evaluation_format_from_proto, sampling_options_of
from rollserve_server.pool import DISCARD, EvaluationRequest, PopulationRequest
from rollserve_wire.environments import reproducibility_to_proto
from rollserve_wire.records import message_from_record
from rollserve_wire.summaries import Summary
from rollserve_wire.tensors import named_tensors_from_proto
from rollserve_wire.v1 import evaluation_pb2
from rollserve_wire.v1 import sampler_service_pb2 as pb

if TYPE_CHECKING:
    from rollserve_server.pool import Evaluation, SamplingOptions
    from rollserve_wire.environments import EnvSpec
    from rollserve_wire.policy_map import PolicyMap
    from rollserve_wire.v1 import policies_pb2

__all__ = [
    "evaluation_request_from_proto",
    "evaluation_to_proto",
    "population_evaluation_to_proto",
    "population_request_from_proto",
]

_MAX_EPISODES = 1 << 17
"""Largest number of episodes of all members. The result then stays below the size that gRPC's clients accept by
default."""

_MAX_POLICY_MAPS = 4096
"""Largest number of maps that the episodes of an evaluation have by turns."""


def evaluation_request_from_proto(request: pb.EvaluateRequest, allowed_paths: Collection[Path]) -> EvaluationRequest:
    """Return the request for an evaluation.

    Raises:
        InvalidValueError: a field is out of range or malformed.
        NotAllowedError: an argument is a path that is not allowed; see `check_paths`.
    """
    num_episodes = in_range("episode_count", request.episode_count, 1, _MAX_EPISODES)
    messages = DISCARD
    if request.HasField("episodes"):
        with in_field("episodes"):
            messages = evaluation_format_from_proto(request.episodes)
    options, env = _options_from_proto(request.options, allowed_paths)
    return EvaluationRequest(num_episodes, options, env, messages, _policy_maps_from_proto(request.options.policy_maps))


def population_request_from_proto(
    request: pb.EvaluatePopulationRequest, allowed_paths: Collection[Path]
) -> PopulationRequest:
    """Return the request for an evaluation of a population; raises as `evaluation_request_from_proto`."""
    with in_field("parameters"):
        parameters = named_tensors_from_proto(request.parameters.tensors)
    policies: dict[str, Mapping[str, np.ndarray]] = {}
    for name in sorted(request.policies):
        with in_field(f"policies[{name!r}]"):
            policies[name] = named_tensors_from_proto(request.policies[name].tensors)
    if parameters and policies:
        raise InvalidValueError.of("parameters", expected="none beside `policies`", got=listed(parameters))
    arrays = [value for stacked in (parameters, *policies.values()) for value in stacked.values()]
    num_members = max((len(value) for value in arrays if value.ndim), default=1)
    if num_members > _MAX_EPISODES:
        field = "policies" if policies else "parameters"
        raise InvalidValueError.of(field, expected=f"at most {_MAX_EPISODES} members", got=num_members)
    max_episodes = max(_MAX_EPISODES // max(num_members, 1), 1)
    num_episodes = in_range("episode_count", request.episode_count, 1, max_episodes)
    options, env = _options_from_proto(request.options, allowed_paths)
    policy_maps = _policy_maps_from_proto(request.options.policy_maps)
    is_shared = not request.different_episodes
    return PopulationRequest(parameters, num_episodes, options, env, is_shared, policies, policy_maps)


def evaluation_to_proto(evaluation: Evaluation) -> evaluation_pb2.Evaluation:
    """Return the result of an evaluation."""
    _, returns, lengths, terminated, truncated, _ = zip(*evaluation.outcomes, strict=True)
    return message_from_record(
        evaluation_pb2.Evaluation,
        evaluation.account,
        returns=returns,
        lengths=lengths,
        terminated=terminated,
        truncated=truncated,
        return_summary=_summary_to_proto(returns),
        length_summary=_summary_to_proto(lengths),
        reproducibility=reproducibility_to_proto(evaluation.reproducibility),
        account=account_to_proto(evaluation.account),
        agent_returns=_agent_returns_to_proto(evaluation) if evaluation.agents else None,
    )


def population_evaluation_to_proto(evaluation: Evaluation) -> evaluation_pb2.PopulationEvaluation:
    """Return the result of an evaluation of a population."""
    return message_from_record(
        evaluation_pb2.PopulationEvaluation,
        evaluation.account,
        returns=[outcome.total_reward for outcome in evaluation.outcomes],
        lengths=[outcome.length for outcome in evaluation.outcomes],
        member_count=evaluation.num_members,
        episode_count=len(evaluation.outcomes) // evaluation.num_members,
        step_count=sum(outcome.length for outcome in evaluation.outcomes),
        reproducibility=reproducibility_to_proto(evaluation.reproducibility),
        account=account_to_proto(evaluation.account),
        agent_returns=_agent_returns_to_proto(evaluation) if evaluation.agents else None,
    )


def _summary_to_proto(values: Sequence[float]) -> evaluation_pb2.Summary:
    summary = Summary.of(np.array(values))
    low, high = summary.confidence_interval or (None, None)
    return evaluation_pb2.Summary(
        mean=summary.mean, standard_deviation=summary.std, confidence_low=low, confidence_high=high
    )


def _agent_returns_to_proto(evaluation: Evaluation) -> evaluation_pb2.AgentReturns:
    """Return what each agent got in each episode."""
    shape = len(evaluation.outcomes), len(evaluation.agents)
    returns, positions = np.full(shape, np.nan), np.full(shape, -1)
    known: dict[tuple[str, int], int] = {}
    for row, outcome in enumerate(evaluation.outcomes):
        for agent, policy, version, total_reward in outcome.agents:
            returns[row, agent] = total_reward
            positions[row, agent] = known.setdefault((policy, version), len(known))
    policies = [evaluation_pb2.PolicyVersion(policy=policy, version=version) for policy, version in known]
    return evaluation_pb2.AgentReturns(
        agents=evaluation.agents,
        policies=policies,
        returns=returns.ravel(),
        policy_positions=positions.ravel(),
    )


def _policy_maps_from_proto(messages: Sequence[policies_pb2.PolicyMap]) -> Sequence[PolicyMap]:
    """Return the maps that the episodes of an evaluation have by turns."""
    if len(messages) > _MAX_POLICY_MAPS:
        expected = f"at most {_MAX_POLICY_MAPS} maps"
        raise InvalidValueError.of("options.policy_maps", expected=expected, got=len(messages))
    return [policy_map_in(f"options.policy_maps[{position}]", each) for position, each in enumerate(messages)]


def _options_from_proto(
    options: pb.EvaluationOptions, allowed_paths: Collection[Path]
) -> tuple[SamplingOptions, EnvSpec | None]:
    """Return which episodes to evaluate, and the environment of the request, if it has one."""
    given = set_fields(options)
    with in_field("options"):
        env = None
        if "environment" in given:
            for field in ("environment_version", "expected_environment_version"):
                if field in given:
                    raise InvalidValueError.of(field, expected="none beside an environment", got=given[field])
            with in_field("environment"):
                env = environment_from_proto(options.environment, allowed_paths)
        return sampling_options_of(given), env
