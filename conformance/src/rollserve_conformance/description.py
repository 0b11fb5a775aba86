"""Descriptions of batches, answers and errors, in the form in which adapters write them."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from google.rpc import error_details_pb2, status_pb2

from rollserve_conformance.many_reading import by_agent, joint
from rollserve_conformance.reading import GROUPS, HEADERS, is_mask, mask_name
from rollserve_wire.columns import MANY_COLUMNS
from rollserve_wire.v1 import sampler_service_pb2 as pb

if TYPE_CHECKING:
    from rollserve_conformance.reading import Arrays
    from rollserve_wire.v1 import episode_batch_pb2, evaluation_pb2

__all__ = [
    "MANY_HEADERS",
    "OPTIONAL_GROUPS",
    "OPTIONAL_STATES",
    "REQUIRED_GROUPS",
    "describe_account",
    "describe_answer",
    "describe_batch",
    "describe_columns",
    "describe_error",
    "describe_groups",
    "describe_many",
    "describe_segments",
    "describe_step",
    "describe_sums",
    "describe_views",
]

MANY_HEADERS = [name for name, spec in MANY_COLUMNS.items() if spec.kind == "header"]
OPTIONAL_STATES = [name for name, spec in MANY_COLUMNS.items() if spec.kind != "header"]
"""Columns of a batch of many agents that its description leaves out where it has none."""
_NAMES = {"env_actions": "environment_actions"}
"""Columns that have another name in descriptions."""
_OPTIONAL = {name for name, spec in GROUPS.items() if spec.is_optional or spec.option}
OPTIONAL_GROUPS = [_NAMES.get(name, name) for name in GROUPS if name in _OPTIONAL]
"""Columns that a description may leave out where a batch has none."""
REQUIRED_GROUPS = [name for name in GROUPS if name not in _OPTIONAL]
"""Columns that each description has."""
_KINDS = {
    "FAILED_PRECONDITION": "precondition",
    "ABORTED": "precondition",
    "RESOURCE_EXHAUSTED": "limit",
    "UNAVAILABLE": "unavailable",
    "CANCELLED": "cancelled",
    "DEADLINE_EXCEEDED": "deadline",
    **dict.fromkeys(
        ("INVALID_ARGUMENT", "NOT_FOUND", "ALREADY_EXISTS", "OUT_OF_RANGE", "PERMISSION_DENIED", "UNAUTHENTICATED"),
        "invalid_argument",
    ),
    "UNIMPLEMENTED": "invalid_argument",
}
_ACCESS_REASONS = ("TOKEN_MISSING", "TOKEN_INVALID", "TOKEN_EXPIRED", "SCOPE_MISSING")


def describe_columns(columns: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return the description of each column by its name; masks are in the descriptions of their columns."""
    return {
        name: _describe(column, columns.get(mask_name(name)))
        for name, column in columns.items()
        if not is_mask(name, columns)
    }


def _describe(column: np.ndarray, mask: np.ndarray | None) -> dict[str, Any]:
    little = np.ascontiguousarray(column, column.dtype.newbyteorder("<"))
    result = {"dtype": column.dtype.name, "shape": list(column.shape), "sha256": _digest(little.tobytes())}
    return result if mask is None else {**result, "mask": _digest(np.asarray(mask, np.bool_).tobytes())}


def describe_groups(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return the descriptions of a batch's columns of tensors, given their arrays by leaf."""
    return {
        _NAMES.get(name, name): describe_columns(arrays[name])
        for name in GROUPS
        if name not in _OPTIONAL or arrays[name]
    }


def describe_batch(arrays: Arrays) -> dict[str, Any]:
    """Return the description of a joined stream."""
    return {**describe_segments(arrays), "account": describe_account(arrays["account"])}


def describe_many(arrays: Arrays) -> dict[str, Any]:
    """Return the description of a joined stream with many agents."""
    result: dict[str, Any] = {"agents": arrays["agents"]}
    result |= {name: arrays[name].tolist() for name in MANY_HEADERS}
    for name in OPTIONAL_STATES:
        if arrays[name] is not None:
            result[name] = describe_columns({"": arrays[name]})[""]
    result["policies"] = {
        name: {
            **describe_segments(policy),
            "agents": [arrays["agents"][position] for position in policy["agent_positions"]],
            "env_steps": policy["env_steps"].tolist(),
            "rewards_before": policy["rewards_before"].tolist(),
        }
        for name, policy in arrays["policies"].items()
    }
    return {**result, "account": describe_account(arrays["account"])}


def describe_views(arrays: Arrays, views: Iterable[str]) -> dict[str, Any]:
    """Return the descriptions of some views of a joined stream with many agents: `by_agent` or `joint`."""
    described: dict[str, Any] = {}
    if "by_agent" in views:
        described["by_agent"] = {agent: describe_segments(batch) for agent, batch in by_agent(arrays).items()}
    if "joint" in views:
        described["joint"] = {
            agent: {name: describe_columns(columns) for name, columns in steps.items()}
            for agent, steps in joint(arrays).items()
        }
    return described


def describe_segments(arrays: Arrays) -> dict[str, Any]:
    """Return the description of a batch without its account."""
    result: dict[str, Any] = {name: arrays[name].tolist() for name in HEADERS}
    starts = np.concatenate([[0], np.cumsum(arrays["lengths"])]).astype(int)
    rewards = arrays["rewards"][""]
    result["returns"] = [float(rewards[a:b].sum()) for a, b in itertools.pairwise(starts)]
    result |= describe_groups(arrays)
    if len(arrays["returns_before"]):
        result["returns_before"] = describe_sums(arrays["returns_before"])
    return result


def describe_account(account: episode_batch_pb2.Account) -> dict[str, Any]:
    """Return the description of an account."""
    described = {
        "num_steps": account.step_count,
        "num_episodes": account.episode_count,
        "seed": str(account.seed),
        "num_resumptions": 0,
    }
    counts = {"num_non_finite_steps": account.non_finite_step_count, "dropped_infos": dict(account.dropped_infos)}
    return {**described, **{name: count for name, count in counts.items() if count}}


def describe_step(arrays: Arrays) -> dict[str, Any]:
    """Return the description of a step of a session."""
    lists = ("episode_indices", "terminated", "truncated", "ended_rows", "env_seeds")
    described = {"number": arrays["number"], **{name: arrays[name].tolist() for name in lists}}
    columns = {name: arrays[name] for name in ("observations", "last_observations", "infos", "last_infos")}
    columns["rewards"] = {"": arrays["rewards"]}
    return {**described, **{name: describe_columns(each) for name, each in columns.items()}}


def describe_sums(sums: Iterable[float]) -> list[float | None]:
    """Return numbers as JSON has them, with None for those that are unknown."""
    return [None if math.isnan(each) else float(each) for each in sums]


def describe_answer(rpc: str, responses: list[bytes]) -> dict[str, Any]:
    """Return the description of what an RPC that is no sampling call has answered."""
    if rpc == "UpdateEnv":
        return {"environment_version": pb.UpdateEnvResponse.FromString(responses[0]).environment_version}
    if rpc == "UpdateAgent":
        return {"policy_version": pb.UpdateAgentResponse.FromString(responses[0]).policy_version}
    if rpc == "Evaluate":
        evaluation = pb.EvaluateResponse.FromString(responses[-1]).evaluation
        result: dict[str, Any] = {"returns": list(evaluation.returns), "lengths": list(evaluation.lengths)}
        if evaluation.HasField("agent_returns"):
            result["agent_returns"] = _agent_returns(evaluation.agent_returns)
        return result
    if rpc == "CallEnvironments":
        values = pb.CallEnvironmentsResponse.FromString(responses[0]).values_json
        return {"values": [json.loads(value) for value in values]}
    status = pb.GetSamplerResponse.FromString(responses[0])
    return {
        "policy_version": status.policy_version,
        "environment_version": status.environment_version,
        "num_workers": len(status.workers),
    }


def _agent_returns(message: evaluation_pb2.AgentReturns) -> dict[str, Any]:
    shape = -1, len(message.agents)
    returns, positions = np.array(message.returns).reshape(shape), np.array(message.policy_positions).reshape(shape)
    policies = [f"{each.policy}@{each.version}" for each in message.policies]
    means_of = {}
    for place, agent in enumerate(message.agents):
        means_of[agent] = list(returns[positions[:, place] >= 0, place])
    for place, policy in enumerate(policies):
        acted = positions == place
        means_of[policy] = [row[mask].mean() for row, mask in zip(returns, acted, strict=True) if mask.any()]
    means = {name: float(np.mean(each)) for name, each in means_of.items() if each}
    return {
        "agents": list(message.agents),
        "policies": policies,
        "returns": describe_sums(message.returns),
        "policy_positions": list(message.policy_positions),
        "by_agent": {agent: means[agent] for agent in message.agents if agent in means},
        "by_policy": {policy: means[policy] for policy in policies if policy in means},
    }


def describe_error(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of the error with which a recorded RPC has ended."""
    trailing = record.get("trailing", {})
    reason = trailing.get("rollserve-reason", "")
    return {
        # the class of the error in the tree of errors
        "kind": "access" if reason in _ACCESS_REASONS else _KINDS.get(record["status"], "server"),
        "status": record["status"],
        "reason": reason,
        "field": _field_of(base64.b64decode(trailing.get("grpc-status-details-bin", ""))),
        "message": record["details"],
        "request_id": trailing.get("rollserve-request-id", ""),
    }


def _field_of(details: bytes) -> str:
    for detail in status_pb2.Status.FromString(details).details:
        request = error_details_pb2.BadRequest()
        if detail.Unpack(request) and request.field_violations:
            return str(request.field_violations[0].field)
    return ""


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
