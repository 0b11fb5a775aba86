"""Messages and outcomes of environments with many agents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollserve_server.sampling.encode.many_content import ManyContent
from rollserve_server.sampling.encode.many_segments import ManySegment, cut_many_into_messages
from rollserve_server.sampling.protocol.orders import AgentOutcome
from rollserve_server.sampling.work.claims import MessageForm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollserve_server.agents import PolicyAgents
    from rollserve_server.sampling.encode.encoder import Encoder, Encoding
    from rollserve_server.sampling.encode.messages import EncodedMessage
    from rollserve_server.sampling.record.lives import ManyEpisode

__all__ = ["many_agents", "outcomes_of_agents"]


def many_agents(agents: PolicyAgents) -> MessageForm[ManyEpisode, ManySegment]:
    """Return the form of messages of episodes in which these policies acted."""
    policies = [(policy.name, policy.version) for policy in agents.policies]

    def encode(encoder: Encoder, segments: Sequence[ManySegment], encoding: Encoding) -> EncodedMessage:
        return encoder.encode_many(ManyContent(segments, agents.agents, policies), encoding)

    return MessageForm(cut_many_into_messages, encode)


def outcomes_of_agents(agents: PolicyAgents, episode: ManyEpisode) -> tuple[AgentOutcome, ...]:
    """Return the outcomes of the agents that made a step in a finished episode."""
    outcomes: dict[int, AgentOutcome] = {}
    for life in episode.lives:
        policy, before = agents.policies[life.policy], outcomes.get(life.agent)
        total_reward = (before.total_reward if before else 0.0) + life.total_reward
        outcomes[life.agent] = AgentOutcome(life.agent, policy.name, policy.version, total_reward)
    return tuple(outcomes.values())
