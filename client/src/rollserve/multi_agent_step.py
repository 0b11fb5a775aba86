"""Steps of sessions in environments with many agents, by agent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rollserve_wire.columns import columns_of, concatenate_columns, concatenate_infos, map_columns
from rollserve_wire.representations import briefly
from rollserve_wire.tensors import named_tensors_from_proto
from rollserve_wire.v1 import sampler_service_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from rollserve_wire.columns import Columns

__all__ = ["AgentTurns", "Kind", "MultiAgentStep", "read_multi_agent_step"]


@briefly
@dataclass(frozen=True, eq=False)
class AgentTurns:
    """An agent's turns in A rows: what it gets before it acts, or at the end of its life.

    Attributes:
        rows: (A,) int64, the rows.
        observations: (A, *O), or a mapping with such an array for each leaf of a nested space.
        rewards: (A,) float64, sum of the rewards since the agent's last action, or since it appeared.
        terminated: (A,) bool, whether the environment has ended the agent's life.
        truncated: (A,) bool, whether a limit has, or the end of the episode. Both may be true.
        infos: (A, *I) by name, what came with the observations, if the session was begun with `infos=True`; as in
            `DrivenStep`.
    """

    rows: NDArray[np.int64]
    observations: Columns
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    infos: Mapping[str, np.ndarray]


@briefly
@dataclass(frozen=True, eq=False)
class MultiAgentStep:
    """Turns of the agents of N rows for which the client acts: those that act in the next step, and those that ended.

    Rows are reset in the step that ends an episode: their agents' turns are then the first ones of the next episode.

    Attributes:
        number: number of the step that actions are wanted for, from 0. Steps in which none of these agents acts, in any
            row, are made without the client.
        turns: by agent, the turns before its next actions, by row; only of agents that act in the next step.
        ends: by agent, the turns that have ended its lives since the last step; only of agents that have some. Agents
            with the same spaces are in the order in which they have ended.
        episode_indices: (N,) int64, index of the episode that each row's next step belongs to.
        env_seeds: (N,) uint64, seed of the last reset of each row's environment.
    """

    number: int
    turns: Mapping[str, AgentTurns]
    ends: Mapping[str, AgentTurns]
    episode_indices: NDArray[np.int64]
    env_seeds: NDArray[np.uint64]


class Kind(NamedTuple):
    """Agents of one kind that act in the next step, (A,) each, in the order in which their actions are sent.

    Attributes:
        agents: positions among the environment's agents.
        rows: their rows.
    """

    agents: NDArray[np.int64]
    rows: NDArray[np.int64]


def read_multi_agent_step(data: memoryview, names: Sequence[str]) -> tuple[MultiAgentStep, list[Kind]]:
    """Return a serialized step, and the kinds of its agents, given the names of all agents of the environment.

    Raises:
        ValueError, IndexError: a malformed step.
    """
    message = pb.DrivenStep.FromString(data.tobytes())
    counts = [len(worker.episode_indices) for worker in message.workers]
    starts = (np.cumsum(counts) - counts).tolist()
    rewards = np.zeros((len(names), sum(counts)))
    ended: dict[int, list[AgentTurns]] = {}
    for worker, start in zip(message.workers, starts, strict=True):
        for results in worker.results:
            _add_results(results, start, rewards, ended)
    turns, kinds = dict[str, AgentTurns](), list[Kind]()
    for same in zip(*(worker.turns for worker in message.workers), strict=True):
        kind = Kind(
            np.concatenate([np.array(part.agent_positions, np.int64) for part in same]),
            np.concatenate([start + np.array(part.rows, np.int64) for part, start in zip(same, starts, strict=True)]),
        )
        kinds.append(kind)
        observations = concatenate_columns([columns_of(named_tensors_from_proto(part.observations)) for part in same])
        infos = [named_tensors_from_proto(part.infos) for part in same]
        whole = _turns(kind, observations, concatenate_infos(infos, [len(part.rows) for part in same]), rewards)
        for agent in np.unique(kind.agents).tolist():
            turns[names[agent]] = _taken(whole, kind.agents == agent)
    step = MultiAgentStep(
        message.step,
        {name: turns[name] for name in names if name in turns},
        {names[agent]: _joined(parts) for agent, parts in ended.items()},
        np.concatenate([np.array(worker.episode_indices, np.int64) for worker in message.workers]),
        np.concatenate([np.array(worker.environment_seeds, np.uint64) for worker in message.workers]),
    )
    return step, kinds


def _turns(kind: Kind, observations: Columns, infos: Mapping[str, np.ndarray], rewards: np.ndarray) -> AgentTurns:
    """Return turns of agents that go on, given the rewards of each agent and row."""
    flags = np.zeros(len(kind.rows), np.bool_)
    return AgentTurns(kind.rows, observations, rewards[kind.agents, kind.rows], flags, flags, infos)


def _add_results(results: pb.AgentResults, start: int, rewards: np.ndarray, ended: dict[int, list[AgentTurns]]) -> None:
    """Add results of agents of one kind: the rewards of those that go on, and the turns of those that have ended."""
    agents, rows = np.array(results.agent_positions, np.int64), start + np.array(results.rows, np.int64)
    its_rewards, terminated, truncated = map(np.array, (results.rewards, results.terminated, results.truncated))
    is_ended = terminated | truncated
    rewards[agents[~is_ended], rows[~is_ended]] = its_rewards[~is_ended]
    if not is_ended.any():
        return
    whole = AgentTurns(
        rows[is_ended],
        columns_of(named_tensors_from_proto(results.last_observations)),
        its_rewards[is_ended],
        terminated[is_ended],
        truncated[is_ended],
        named_tensors_from_proto(results.last_infos),
    )
    agents = agents[is_ended]
    for agent in dict.fromkeys(agents.tolist()):
        ended.setdefault(agent, []).append(_taken(whole, agents == agent))


def _taken(turns: AgentTurns, which: NDArray[np.bool_]) -> AgentTurns:
    """Return some of the turns."""
    return AgentTurns(
        turns.rows[which],
        map_columns(lambda column: column[which], turns.observations),
        turns.rewards[which],
        turns.terminated[which],
        turns.truncated[which],
        {name: column[which] for name, column in turns.infos.items()},
    )


def _joined(parts: Sequence[AgentTurns]) -> AgentTurns:
    """Return the turns of all parts."""

    def joined(columns: Iterable[Any]) -> Any:
        return np.concatenate(list(columns))

    if len(parts) == 1:
        return parts[0]
    return AgentTurns(
        joined(part.rows for part in parts),
        concatenate_columns([part.observations for part in parts]),
        joined(part.rewards for part in parts),
        joined(part.terminated for part in parts),
        joined(part.truncated for part in parts),
        concatenate_infos([part.infos for part in parts], [len(part.rows) for part in parts]),
    )
