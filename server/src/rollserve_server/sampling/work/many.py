"""Messages of environments with many agents."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from rollserve_server.sampling.collect.evaluator import Evaluator
from rollserve_server.sampling.encode.many_content import ManyContent
from rollserve_server.sampling.encode.many_segments import ManySegment, cut_many_into_messages
from rollserve_server.sampling.work.claims import MessageForm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollserve_server.agents import PolicyAgents
    from rollserve_server.sampling.encode.encoder import Encoder, Encoding
    from rollserve_server.sampling.encode.messages import EncodedMessage
    from rollserve_server.sampling.record.lives import ManyEpisode

__all__ = ["many_agents"]


def many_agents(agents: PolicyAgents) -> MessageForm[ManyEpisode, ManySegment]:
    """Return the form of messages of episodes in which these policies acted."""
    policies = [(policy.name, policy.version) for policy in agents.policies]

    @functools.cache
    def evaluator_of(name: str, version: int) -> Evaluator:
        policy = agents.policies[policies.index((name, version))]
        return Evaluator(policy.agent, policy.num_places)

    def encode(encoder: Encoder, segments: Sequence[ManySegment], encoding: Encoding) -> EncodedMessage:
        return encoder.encode_many(ManyContent(segments, agents.agents, policies), encoding, evaluator_of)

    return MessageForm(cut_many_into_messages, encode)
