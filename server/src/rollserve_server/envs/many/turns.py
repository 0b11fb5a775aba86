"""The one interface behind which PettingZoo's two are: agents that get observations, and act or have ended."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rollserve_server.envs.outcomes import ReturnedError
from rollserve_wire.errors import mismatch

if TYPE_CHECKING:
    import numpy as np
    from gymnasium import Space

__all__ = ["Turn", "TurnEnv", "check_agents", "positions_of"]


class Turn(NamedTuple):
    """What an agent gets before it acts, or when it has ended.

    Attributes:
        agent: position of the agent among the environment's possible agents.
        observation: the observation.
        reward: sum of the rewards since the agent's last action, or since it appeared.
        terminated: whether the agent has reached a terminal state.
        truncated: whether a limit outside the task has ended the agent's life.
        info: the environment's infos for the agent.
        columns: for each leaf of the observation space, the observation (*O) of an agent that has ended and appears
            again in the same step, where the next turn takes its place in the columns of `ManyEnvs`; otherwise None.
    """

    agent: int
    observation: Any
    reward: float
    terminated: bool
    truncated: bool
    info: Mapping[Any, Any]
    columns: Sequence[np.ndarray] | None = None

    @property
    def ended(self) -> bool:
        """Whether the agent acts no more, unless it appears again."""
        return self.terminated or self.truncated


class TurnEnv(ABC):
    """An environment with many agents. In each step, the agents act whose last turns have not ended them.

    An agent's life goes from its first turn to the turn that ends it; an agent that appears again has another life.

    Attributes:
        agents: names of the possible agents, in the environment's order.
        observation_spaces: observation space of each agent.
        action_spaces: action space of each agent.
        max_acting: largest number of agents that act in the same step.
        state_space: space of the global state; None if the environment announces none.
    """

    agents: tuple[str, ...]
    observation_spaces: tuple[Space[Any], ...]
    action_spaces: tuple[Space[Any], ...]
    max_acting: int
    state_space: Space[Any] | None

    @abstractmethod
    def reset(self, seed: int, options: dict[str, Any] | None) -> Sequence[Turn]:
        """Begin an episode, and return the first turns. Raises what the environment raises."""

    @abstractmethod
    def step(self, actions: Mapping[int, Any]) -> Sequence[Turn]:
        """Make a step with an action of each agent that acts, and return the next turns.

        Without a turn of an agent that goes on, the episode is over.

        Raises:
            ReturnedError: the environment breaks the rules of PettingZoo.
            BaseException: what the environment raises.
        """

    @abstractmethod
    def cut(self) -> Sequence[Turn]:
        """Return the turns of the agents that wait for theirs, because the caller ends the episode here.

        The next episode may begin in the same state: rewards that were returned are not returned again, and those of
        absent agents are forgotten.
        """

    @abstractmethod
    def state(self) -> Any:
        """Return the global state. Raises what the environment raises."""

    @abstractmethod
    def close(self) -> None:
        """Close the environment."""


def positions_of(agents: Sequence[str]) -> dict[Any, int]:
    """Return the position of each agent by its name."""
    return {agent: position for position, agent in enumerate(agents)}


def check_agents(agents: Sequence[Any], known: Mapping[Any, int]) -> None:
    """Raise ReturnedError if an agent has appeared that is not among the possible ones, or appears twice."""
    for agent in agents:
        if agent not in known:
            raise ReturnedError(f"agents: {mismatch(f'some of possible_agents, {list(known)}', repr(agent))}")
    if len(set(agents)) < len(agents):
        raise ReturnedError(f"agents: {mismatch('each agent once', list(agents))}")
