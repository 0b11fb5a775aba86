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

from rollserve.v1 import sampler_service_pb2 as pb
from rollserve_server.conformance.reading import is_mask, mask_name

if TYPE_CHECKING:
    from rollserve_server.conformance.reading import Arrays

__all__ = [
    "GROUPS",
    "HEADERS",
    "OPTIONAL_GROUPS",
    "describe_answer",
    "describe_batch",
    "describe_columns",
    "describe_error",
    "describe_sums",
]

HEADERS = ("episode_indices", "first_steps", "lengths", "terminated", "truncated", "policy_versions", "env_seeds")
GROUPS = (
    *("observations", "last_observations", "actions", "rewards", "agent_infos", "env_infos", "episode_infos"),
    "initial_states",
)
OPTIONAL_GROUPS = ("raw_rewards", "environment_actions", "last_values", "last_states")
"""Columns that a description may leave out where a batch has none."""
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


def describe_batch(arrays: Arrays) -> dict[str, Any]:
    """Return the description of a joined stream."""
    result: dict[str, Any] = {name: arrays[name].tolist() for name in HEADERS}
    starts = np.concatenate([[0], np.cumsum(arrays["lengths"])]).astype(int)
    rewards = arrays["rewards"][""]
    result["returns"] = [float(rewards[a:b].sum()) for a, b in itertools.pairwise(starts)]
    for group in (*GROUPS, *OPTIONAL_GROUPS):
        if group in GROUPS or arrays[group]:
            result[group] = describe_columns(arrays[group])
    if len(arrays["returns_before"]):
        result["returns_before"] = describe_sums(arrays["returns_before"])
    account = arrays["account"]
    result["account"] = {
        "num_steps": account.step_count,
        "num_episodes": account.episode_count,
        "seed": str(account.seed),
        "num_resumptions": 0,
    }
    return result


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
        return {"returns": list(evaluation.returns), "lengths": list(evaluation.lengths)}
    if rpc == "CallEnvironments":
        values = pb.CallEnvironmentsResponse.FromString(responses[0]).values_json
        return {"values": [json.loads(value) for value in values]}
    status = pb.GetSamplerResponse.FromString(responses[0])
    return {
        "policy_version": status.policy_version,
        "environment_version": status.environment_version,
        "num_workers": len(status.workers),
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
