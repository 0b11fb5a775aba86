"""Updates of agents and environments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rollserve_server.agents import AgentSpec, PolicySource
from rollserve_wire.environments import EnvChange, EnvSpec

if TYPE_CHECKING:
    from rollserve_server.sampling import EnvDescription
    from rollserve_wire.policy_map import PolicyMap

__all__ = [
    "AgentChange",
    "AgentUpdate",
    "AgentUpdated",
    "EnvUpdate",
    "EnvUpdated",
    "EnvValues",
    "PolicyUpdate",
    "PolicyUpdates",
    "RowUpdates",
]


@dataclass(frozen=True, eq=False)
class AgentChange:
    """A change of the settings of the current agent, which is a Python agent.

    Attributes:
        kwargs: keyword arguments of its factory that are added or replaced.
        parameters: parameters that are added or replaced.
    """

    kwargs: Mapping[str, object]
    parameters: Mapping[str, np.ndarray]


PolicyUpdate = PolicySource | Mapping[str, np.ndarray] | AgentChange
"""A whole agent; or parameters for the current one, or a change of it."""


@dataclass(frozen=True, eq=False)
class PolicyUpdates:
    """Updates of policies by name, and of the map from agents to them.

    Attributes:
        policies: an update for each new or changed policy.
        policy_map: the map; None for the present one.
    """

    policies: Mapping[str, PolicyUpdate]
    policy_map: PolicyMap | None


AgentUpdate = PolicyUpdate | PolicyUpdates
"""An update of the agent; or of policies by name, for an environment with many agents."""


@dataclass(frozen=True)
class RowUpdates:
    """Updates that differ between the rows of a worker.

    Attributes:
        updates: for each row a whole environment, a change of the current one, or None to leave it as it is.
    """

    updates: tuple[EnvSpec | EnvChange | None, ...]


EnvUpdate = EnvSpec | EnvChange | RowUpdates
"""A whole environment or a change of the current one, for all rows of a worker; or one update for each row."""


@dataclass(frozen=True)
class AgentUpdated:
    """The workers' new agents.

    Attributes:
        version: their version.
        env_version: version of the environments that they were checked against.
        agents: one for all, or one for each worker.
        replaced: the agents of the version before; None if there was none.
    """

    version: int
    env_version: int
    agents: Sequence[AgentSpec] = ()
    replaced: Sequence[AgentSpec] | None = None


@dataclass(frozen=True)
class EnvUpdated:
    """The workers' new environments.

    Attributes:
        version: their version.
        specs: one for all, one for each worker, or one for each row of each worker.
        description: their spaces, and how rows are stepped.
        replaced_specs: the environments of the version before, in the same form.
    """

    version: int
    specs: Sequence[EnvSpec]
    description: EnvDescription
    replaced_specs: Sequence[EnvSpec] = ()


@dataclass(frozen=True)
class EnvValues:
    """Values that a method of the environments has returned.

    Attributes:
        version: version of the environments.
        values: the values as JSON: one for all, one for each worker, or one for each row of each worker.
    """

    version: int
    values: Sequence[str]
