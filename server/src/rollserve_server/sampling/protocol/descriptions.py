"""Descriptions: what workers report about themselves and about their environments."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gymnasium import Space

    from rollserve_server.envs import Traces
    from rollserve_wire.environments import Reproducibility

__all__ = ["EnvDescription", "WorkerIdentity"]


@dataclass(frozen=True)
class WorkerIdentity:
    """The process and the host that a worker runs in.

    Attributes:
        process_id: id of the process.
        host: name of the machine.
        packages: names and versions of what decides what environments do: packages, and the hash seed.
    """

    process_id: int
    host: str
    packages: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class EnvDescription:
    """Properties of an installed environment.

    Attributes:
        observation_space: space of one row's observations.
        action_space: space of one row's actions.
        max_episode_steps: step limit of an episode; None if no limit is known.
        reproducibility: reproducibility class, as far as a quick check can tell.
        num_rows: number of rows that a worker steps for each work.
        num_episodes_per_row: number of episodes of each row in a block; None if rows are stepped one by one.
        why_not_single: why rows that are stepped one by one are not the environment of these rows, which are stepped
            together; empty if they are.
        agents: names of the possible agents, whose spaces are in Dict spaces; empty for an environment with one agent.
        traces: first episodes, to compare with other processes'; empty once that is done.
    """

    observation_space: Space[Any]
    action_space: Space[Any]
    max_episode_steps: int | None
    reproducibility: Reproducibility
    num_rows: int
    num_episodes_per_row: int | None = None
    why_not_single: str = ""
    agents: tuple[str, ...] = ()
    traces: Traces = field(default_factory=dict)
