"""How episodes with one agent, or with many, become messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from rollserve_server.sampling.encode.many_content import ManyContent
from rollserve_server.sampling.encode.many_segments import ManySegment, cut_many_into_messages
from rollserve_server.sampling.encode.segment_content import SegmentContent
from rollserve_server.sampling.encode.segments import Segment, cut_into_messages

if TYPE_CHECKING:
    from rollserve_server.sampling.encode.encoder import Encoder, Encoding, Evaluate
    from rollserve_server.sampling.encode.messages import EncodedMessage
    from rollserve_server.sampling.protocol.orders import ColumnFormat
    from rollserve_server.sampling.record.episodes import Episode
    from rollserve_server.sampling.record.lives import ManyEpisode

__all__ = ["ONE_AGENT", "E", "MessageForm", "P", "many_agents"]


class _IsEpisode(Protocol):
    """An episode, with one agent or with many."""

    index: int
    length: int


class _IsPart(Protocol):
    """Steps of an episode, from `start` up to `stop`."""

    @property
    def episode(self) -> _IsEpisode: ...

    @property
    def stop(self) -> int: ...

    @property
    def ends(self) -> bool: ...


E = TypeVar("E", bound=_IsEpisode)
P = TypeVar("P", bound=_IsPart)


class MessageForm(NamedTuple, Generic[E, P]):
    """How episodes become messages.

    Attributes:
        cut: yields the parts of episodes that each message has; see `cut_into_messages`.
        encode: returns the message with parts.
    """

    cut: Callable[[Sequence[E], int, int, Callable[[], int], ColumnFormat], Iterator[Sequence[P]]]
    encode: Callable[[Encoder, Sequence[P], Encoding], EncodedMessage]


def _encode(encoder: Encoder, segments: Sequence[Segment], encoding: Encoding) -> EncodedMessage:
    return encoder.encode(SegmentContent(segments), encoding)


ONE_AGENT: MessageForm[Episode, Segment] = MessageForm(cut_into_messages, _encode)
"""Messages of environments with one agent."""


def many_agents(
    agents: Sequence[str], policies: Sequence[tuple[str, int]], evaluator_of: Callable[[str, int], Evaluate]
) -> MessageForm[ManyEpisode, ManySegment]:
    """Return the form of messages of environments with many agents.

    Args:
        agents: names of the possible agents.
        policies: name and version of the policies, at the positions that lives have.
        evaluator_of: returns the evaluator of a policy's version; see `Encoder.encode_many`.
    """

    def encode(encoder: Encoder, segments: Sequence[ManySegment], encoding: Encoding) -> EncodedMessage:
        return encoder.encode_many(ManyContent(segments, agents, policies), encoding, evaluator_of)

    return MessageForm(cut_many_into_messages, encode)
