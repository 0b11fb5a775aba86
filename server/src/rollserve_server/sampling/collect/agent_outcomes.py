"""Outcomes of episodes with many agents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollserve_server.sampling.protocol.orders import AgentOutcome

if TYPE_CHECKING:
    from rollserve_server.agents import PolicyAgents
    from rollserve_server.sampling.record.lives import ManyEpisode

__all__ = ["outcomes_of_agents"]


def outcomes_of_agents(agents: PolicyAgents, episode: ManyEpisode) -> tuple[AgentOutcome, ...]:
    """Return the outcomes of the agents that made a step in a finished episode."""
    outcomes: dict[int, AgentOutcome] = {}
    for life in episode.lives:
        policy, before = agents.policies[life.policy], outcomes.get(life.agent)
        total_reward = (before.total_reward if before else 0.0) + life.segment.total_reward
        outcomes[life.agent] = AgentOutcome(life.agent, policy.name, policy.version, total_reward)
    return tuple(outcomes.values())
