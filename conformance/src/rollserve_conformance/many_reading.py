"""A plain reader of streams with many agents: batches by policy and by agent, and steps of agents side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve_conformance.reading import concatenated_batches, joined_segments, read_array, read_batch, unjoined
from rollserve_wire.columns import MANY_COLUMNS, PER_STEP, POLICY_COLUMNS, joined_rows

if TYPE_CHECKING:
    from rollserve_conformance.reading import Arrays
    from rollserve_wire.v1 import multi_agent_batch_pb2

__all__ = ["by_agent", "has_many_agents", "joint", "read_many_stream"]

_OF_SEGMENTS = [name for name, spec in POLICY_COLUMNS.items() if not spec.by_step]


def has_many_agents(responses: Iterable[bytes]) -> bool:
    """Return whether a stream has batches of many agents."""
    return any(message.HasField("multi_agent_batch") for message in unjoined(responses))


def read_many_stream(responses: Iterable[bytes]) -> Arrays:
    """Return what the messages of one whole stream with many agents hold, joined.

    Returns:
        the arrays by the names of `MultiAgentBatch`'s fields; `policies`, the batch of each policy by its name, with
        `agent_positions`, `env_steps` and `rewards_before` beside its other arrays; and `account`.

    Raises:
        ValueError: the stream has no batch or no account.
    """
    batches: list[multi_agent_batch_pb2.MultiAgentBatch] = []
    account = None
    for message in unjoined(responses):
        if message.WhichOneof("content") == "multi_agent_batch":
            batches.append(message.multi_agent_batch)
        elif message.WhichOneof("content") == "account":
            account = message.account
    if not batches or account is None:
        raise ValueError("expected batches of many agents and an account")
    parts: dict[str, list[Arrays]] = {}
    for batch in batches:
        for policy in batch.policies:
            parts.setdefault(policy.policy, []).append(_policy_batch(policy))
    policies = {name: _joined(_concatenated(each)) for name, each in sorted(parts.items())}
    return {**_episodes(batches), "agents": list(batches[0].agents), "policies": policies, "account": account}


def _episodes(batches: Sequence[multi_agent_batch_pb2.MultiAgentBatch]) -> Arrays:
    """Return what batches say of episodes, with one element for parts that follow each other."""
    arrays: Arrays = {}
    for name, spec in MANY_COLUMNS.items():
        if spec.kind == "header":
            arrays[name] = np.concatenate([np.array(getattr(each, name)) for each in batches])
        else:
            states = [read_array(getattr(each, name)) for each in batches if each.HasField(name)]  # type: ignore[arg-type]  # a field
            arrays[name] = np.concatenate(states) if states else None
    same = arrays["episode_indices"][1:] == arrays["episode_indices"][:-1]
    continues = same & (arrays["first_steps"][1:] == (arrays["first_steps"] + arrays["lengths"])[:-1])
    begins, ends = np.flatnonzero(np.append(True, ~continues)), np.flatnonzero(np.append(~continues, True))
    return {name: joined_rows(spec, arrays[name], begins, ends) for name, spec in MANY_COLUMNS.items()}


def by_agent(batch: Arrays) -> dict[str, Arrays]:
    """Return the batch of each agent that acted, by episode and time, whatever policies acted."""
    result = {}
    for position, agent in enumerate(batch["agents"]):
        parts = []
        for policy in batch["policies"].values():
            of_agent = np.flatnonzero(policy["agent_positions"] == position)
            if len(of_agent):
                parts.append(_taken(policy, of_agent))
        if parts:
            whole = _concatenated(parts)
            result[agent] = _taken(whole, np.argsort(whole["episode_indices"], kind="stable"))
    return result


def joint(batch: Arrays) -> dict[str, dict[str, Any]]:
    """Return the columns of each agent that acted, with a row for each environment step, zeros where it did not act."""
    rows: dict[tuple[int, int], int] = {}
    for index, begin, length in zip(batch["episode_indices"], batch["first_steps"], batch["lengths"], strict=True):
        for step in range(begin, begin + length):
            rows[int(index), step] = len(rows)
    result = {}
    for agent, of_agent in by_agent(batch).items():
        episodes = np.repeat(of_agent["episode_indices"], of_agent["lengths"])
        pairs = enumerate(zip(episodes.tolist(), of_agent["env_steps"].tolist(), strict=True))
        found = [(step, rows[pair]) for step, pair in pairs if pair in rows]
        result[agent] = _aligned(of_agent, np.array(found, np.int64).reshape(-1, 2), len(rows))
    return result


def _aligned(batch: Arrays, found: np.ndarray, num_rows: int) -> dict[str, Any]:
    """Return an agent's columns by environment step, given pairs of a step of the batch and a row."""

    def column(values: np.ndarray) -> np.ndarray:
        whole = np.zeros((num_rows, *values.shape[1:]), values.dtype)
        whole[found[:, 1]] = values[found[:, 0]]
        return whole

    num_steps = int(batch["lengths"].sum())
    ends = np.cumsum(batch["lengths"]) - 1
    by_step: dict[str, np.ndarray] = {"acted": np.ones(num_steps, np.bool_)}
    for name in ("terminated", "truncated"):
        by_step[name] = np.zeros(num_steps, np.bool_)
        by_step[name][ends] = batch[name]
    by_step["policy_versions"] = np.repeat(batch["policy_versions"], batch["lengths"])
    result: dict[str, Any] = {name: {"": column(values)} for name, values in by_step.items()}
    for group in ("observations", "actions", "rewards"):
        result[group] = {name: column(values) for name, values in batch[group].items()}
    return result


def _policy_batch(message: multi_agent_batch_pb2.PolicyBatch) -> Arrays:
    batch = read_batch(message.batch)
    num_segments = len(batch["lengths"])
    before = np.array(list(message.rewards_before) or [0.0] * num_segments)
    if before.any() and not batch["first_steps"].any():
        batch["returns_before"] = before
    positions = np.array(message.agent_positions, np.int64)
    steps = np.array(message.environment_steps, np.int64)
    return {**batch, "agent_positions": positions, "env_steps": steps, "rewards_before": before}


def _concatenated(parts: Sequence[Arrays]) -> Arrays:
    whole = concatenated_batches(parts)
    for name in POLICY_COLUMNS:
        whole[name] = np.concatenate([part[name] for part in parts])
    return whole


def _joined(batch: Arrays) -> Arrays:
    """Return the segments by episode, agent and time, with one segment for parts of one life of one version."""
    order = np.lexsort((batch["agent_positions"], batch["episode_indices"]))
    ordered = _taken(batch, order)
    versions, agents = ordered["policy_versions"], ordered["agent_positions"]
    apart = (versions[1:] != versions[:-1]) | (agents[1:] != agents[:-1])
    joined, first = joined_segments(ordered, apart)
    return {**joined, **{name: ordered[name][first] for name in _OF_SEGMENTS}}


def _taken(batch: Arrays, segments: np.ndarray) -> Arrays:
    """Return some segments of a batch, in the given order."""
    lengths = batch["lengths"]
    begins = np.cumsum(lengths) - lengths
    steps = np.concatenate([np.arange(begins[each], begins[each] + lengths[each]) for each in segments])
    by_step = {*PER_STEP, "env_steps"}

    def taken(name: str, values: Any) -> Any:
        rows = steps if name in by_step else segments
        if isinstance(values, Mapping):
            return {leaf: each[rows] for leaf, each in values.items()}
        return values[rows] if len(values) else values

    return {name: taken(name, values) for name, values in batch.items()}
