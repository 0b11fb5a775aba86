"""Content of a message with parts of episodes with many agents."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rollserve_server.sampling.encode.endings import endings_of
from rollserve_server.sampling.encode.fields import Rows
from rollserve_server.sampling.encode.segment_content import SegmentContent

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rollserve_server.sampling.encode.many_segments import ManySegment
    from rollserve_server.sampling.encode.segments import Segment
    from rollserve_server.sampling.record.columns import Piece
    from rollserve_server.sampling.record.lives import Life

__all__ = ["ManyContent", "ManyHeaders", "PolicyPart"]


class ManyHeaders(NamedTuple):
    """Values of the E parts of a message, (E,) each, named as the fields of MultiAgentBatch."""

    episode_indices: np.ndarray
    first_steps: np.ndarray
    lengths: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    agent_step_counts: np.ndarray


class PolicyPart(NamedTuple):
    """The S segments of a version of a policy, with T steps.

    Attributes:
        policy: name of the policy.
        version: number of the version.
        content: the segments.
        agent_positions: (S,), the agent of each.
        environment_steps: (T,), the environment step of each step.
        rewards_before: (S,), the sum of the rewards before each life's first step; 0 for a later part of a life.
    """

    policy: str
    version: int
    content: SegmentContent
    agent_positions: np.ndarray
    environment_steps: np.ndarray
    rewards_before: np.ndarray


class ManyContent:
    """Content of a message with parts of episodes, in their order.

    Attributes:
        agents: names of the possible agents.
    """

    def __init__(
        self, segments: Sequence[ManySegment], agents: Sequence[str], policies: Sequence[tuple[str, int]]
    ) -> None:
        """Take the parts, the names of the agents, and the name and version of each policy."""
        self.agents = agents
        self._segments = segments
        self._policies = policies

    def headers(self) -> ManyHeaders:
        """Return the values of each part."""
        segments = self._segments
        return ManyHeaders(
            episode_indices=np.array([segment.episode.index for segment in segments], "<u8"),
            first_steps=np.array([segment.episode.first_step + segment.start for segment in segments], "<u8"),
            lengths=np.array([segment.stop - segment.start for segment in segments], "<u4"),
            terminated=np.array([segment.ends and segment.episode.terminated for segment in segments]),
            truncated=np.array([segment.ends and segment.episode.truncated for segment in segments]),
            agent_step_counts=np.array([segment.num_agent_steps for segment in segments], "<u4"),
        )

    def parts(self) -> Iterator[PolicyPart]:
        """Yield the segments of each version of each policy that has some, by name and version.

        The segments are ordered by episode, agent and time.
        """
        found: dict[int, list[tuple[int, Segment, np.ndarray, float]]] = {}
        for segment in self._segments:
            for life, steps, environment_steps in segment.lives():
                before = 0.0 if steps.start else life.reward_before
                entry = life.agent, steps, environment_steps, before
                found.setdefault(life.policy, []).append(entry)
        for policy in sorted(found, key=self._policies.__getitem__):
            name, version = self._policies[policy]
            agents, segments, steps, rewards = zip(*found[policy], strict=True)
            yield PolicyPart(
                name,
                version,
                SegmentContent(segments),
                np.array(agents, "<u4"),
                np.concatenate(steps).astype("<u4"),
                np.array(rewards, "<f8"),
            )

    def ending_pieces(self, policy: str) -> Sequence[Sequence[Piece]]:
        """Return the pieces of column buffers with all steps of each life in the episodes that end with a part.

        They are the lives in which a policy acted, whatever its version, by episode, agent and time.
        """
        return [[piece for life in parts for piece in life.segment.pieces] for parts in self._ending_lives(policy)]

    def ending_discounted_before(self, policy: str) -> NDArray[np.float64]:
        """Return the discounted returns before the first steps of the lives of `ending_pieces`."""
        return np.array([parts[0].segment.discounted_before for parts in self._ending_lives(policy)])

    def _ending_lives(self, policy: str) -> list[list[Life]]:
        """Return the lives of a policy in ending episodes; parts of one life with the same version are together."""
        lives = (life for segment in self._segments if segment.ends for life in segment.episode.lives)
        its = (life for life in lives if self._policies[life.policy][0] == policy)
        groups = itertools.groupby(its, lambda life: (life.segment.index, life.agent, life.number, life.policy))
        return [list(parts) for _, parts in groups]

    def global_states(self) -> tuple[Rows, Rows] | None:
        """Return the states before each environment step, and after the last one of each part; None for none."""
        before: list[np.ndarray] = []
        last: list[np.ndarray] = []
        for segment in self._segments:
            states = segment.episode.global_states
            if states is None:
                return None
            before += states[segment.start : segment.stop]
            last.append(states[segment.stop])
        return _rows_of(before), _rows_of(last)

    def dropped_infos(self) -> Counter[str]:
        """Return the number of values of infos, by name, that the episodes which end with a part lack."""
        dropped: Counter[str] = Counter()
        for segment in self._segments:
            if segment.ends:
                dropped.update(segment.episode.dropped_infos)
        return dropped

    def endings(self) -> bytes:
        """Return the ends of the episodes that end with a part; see `endings_of`."""
        return endings_of(segment.episode for segment in self._segments if segment.ends)


def _rows_of(states: Sequence[np.ndarray]) -> Rows:
    return Rows([state[np.newaxis] for state in states], states[0].dtype, states[0].shape)
