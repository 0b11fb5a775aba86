"""Parts of episodes with many agents: distributed over messages, and as the content of one."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rollserve_server.sampling.encode.fields import Rows
from rollserve_server.sampling.encode.segments import (
    FILL_BYTES,
    Segment,
    SegmentContent,
    Sizes,
    endings_of,
    groups_of_one_shape,
    info_keys,
    sum_counts,
)
from rollserve_server.sampling.protocol import PLAIN

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from numpy.typing import NDArray

    from rollserve_server.sampling.protocol import ColumnFormat
    from rollserve_server.sampling.record.columns import ColumnKey, Piece
    from rollserve_server.sampling.record.infos import InfoKey
    from rollserve_server.sampling.record.lives import Life, ManyEpisode

__all__ = ["ManyContent", "ManyHeaders", "ManySegment", "cut_many_into_messages"]

_STEP_BYTES = 4
"""Size of the environment step of an agent's step."""

_LIFE_BYTES = 16
"""Upper bound for the position of a segment's agent and its reward before."""

_EPISODE_BYTES = 32
"""Upper bound for the headers of an episode."""

_POLICY_BYTES = 64
"""Upper bound for the keys and lengths of a policy's fields."""

_NAMES_BYTES = 1 << 10
"""Upper bound for the other fields of a message with short names."""


class ManySegment(NamedTuple):
    """Consecutive environment steps of an episode or a fragment, from `start` up to `stop`."""

    episode: ManyEpisode
    start: int
    stop: int

    @property
    def ends(self) -> bool:
        """Whether it holds the last step of the episode or the fragment."""
        return self.stop == self.episode.length

    @property
    def num_agent_steps(self) -> int:
        """Number of the steps of all agents here."""
        return sum(segment.length for _, segment, _ in self.lives())

    def lives(self) -> Iterator[tuple[Life, Segment, NDArray[np.uint32]]]:
        """Yield the lives that have steps here, with these steps, and their environment steps."""
        if not self.start and self.ends:
            for life in self.episode.lives:
                yield life, Segment(life.segment, 0, life.segment.length), life.steps
            return
        for life in self.episode.lives:
            places = self.episode.places(life)
            first, last = (int(end) for end in np.searchsorted(places, (self.start, self.stop)))
            if first < last:
                yield life, Segment(life.segment, first, last), life.steps[first:last]


def cut_many_into_messages(
    episodes: Sequence[ManyEpisode],
    max_message_bytes: int,
    first_step: int = 0,
    fill_bytes: Callable[[], int] = lambda: FILL_BYTES,
    columns: ColumnFormat = PLAIN,
) -> Iterator[Sequence[ManySegment]]:
    """Yield the parts of each message, in order. An episode too long for one message goes on in the next.

    Args:
        episodes: finished episodes of one sequence.
        max_message_bytes: size that no message may exceed.
        first_step: environment step of the first episode to begin with.
        fill_bytes: returns the preferred size of the next message, which is exceeded where steps are very large.
        columns: how columns may be written.

    Raises:
        OverLimitError: a single environment step does not fit into a message.
    """
    for group in groups_of_one_shape(episodes, _info_keys):
        costs = _Costs(group, columns)
        yield from _cut(group, costs, max_message_bytes, first_step, fill_bytes)
        first_step = 0


def _cut(
    episodes: Sequence[ManyEpisode], costs: _Costs, limit: int, first_step: int, fill_bytes: Callable[[], int]
) -> Iterator[list[ManySegment]]:
    """Yield the parts of each message; see `cut_many_into_messages`."""
    segments: list[ManySegment] = []
    room = 0
    for episode in episodes:
        its = costs.of(episode)
        start, first_step = first_step, 0
        if segments and its.part(start) > room:
            yield segments
            segments = []
        if not segments:
            room = its.sizes.room(limit, fill_bytes())
        while its.part(start) > room:
            stop = its.stop(start, room)
            yield [ManySegment(episode, start, stop)]
            start, room = stop, its.sizes.room(limit, fill_bytes())
        segments.append(ManySegment(episode, start, episode.length))
        room -= its.part(start)
    yield segments


class _Costs:
    """Upper bounds for the bytes of messages with parts of some episodes."""

    def __init__(self, episodes: Sequence[ManyEpisode], columns: ColumnFormat) -> None:
        keys: dict[int, set[ColumnKey]] = {}
        for episode in episodes:
            for life in episode.lives:
                of_policy = keys.setdefault(life.policy, set())
                of_policy.update(life.segment.pieces[0].buffer.columns, info_keys([life.segment]))
        self._of_policy = {policy: Sizes.of(its, columns) for policy, its in keys.items()}
        self._message = sum(sizes.message + _POLICY_BYTES for sizes in self._of_policy.values()) + _NAMES_BYTES

    def of(self, episode: ManyEpisode) -> _EpisodeCosts:
        """Return the bounds for parts of an episode."""
        going, steps = np.zeros(episode.length + 1, np.int64), np.zeros(episode.length, np.int64)
        for life in episode.lives:
            sizes, its = self._of_policy[life.policy], episode.places(life)
            segment = sizes.segment + _LIFE_BYTES
            np.add.at(steps, its, sizes.step + _STEP_BYTES)
            steps[its[0]] += segment
            going[its[0] + 1] += segment
            going[its[-1] + 1] -= segment
        state_bytes = episode.global_states[0].nbytes if episode.global_states else 0
        steps += state_bytes
        going = np.cumsum(going) + _EPISODE_BYTES + state_bytes
        return _EpisodeCosts(
            going, np.append(0, np.cumsum(steps)), Sizes(self._message, int(going.max()), int(steps.max()))
        )


class _EpisodeCosts(NamedTuple):
    """Upper bounds for the bytes of parts of an episode with T environment steps.

    Attributes:
        going: (T + 1,), bytes of a part that begins with a step, beside its steps: bytes of the lives that go on.
        before: (T + 1,), bytes of all steps before a step, with the bytes of the lives that begin with them.
        sizes: bounds for a message, for a part beside its steps, and for any step.
    """

    going: NDArray[np.int64]
    before: NDArray[np.int64]
    sizes: Sizes

    def part(self, start: int, stop: int = -1) -> int:
        """Return the bytes of the steps from `start` up to `stop`, by default the last one."""
        return int(self.going[start] + self.before[stop] - self.before[start])

    def stop(self, start: int, room: int) -> int:
        """Return where a part ends that begins with a step and has room for some bytes, and so for this step."""
        most = self.before[start] + room - self.going[start]
        return int(np.searchsorted(self.before, most, "right")) - 1


def _info_keys(episode: ManyEpisode) -> set[tuple[Hashable, InfoKey]]:
    """Return the keys of all infos of an episode, each with its policy and group."""
    return {((life.policy, group), key) for life in episode.lives for group, key in info_keys([life.segment])}


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

    def parts(self) -> Iterator[_PolicyPart]:
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
            yield _PolicyPart(
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
        return sum_counts(segment.episode.dropped_infos for segment in self._segments if segment.ends)

    def endings(self) -> bytes:
        """Return the ends of the episodes that end with a part; see `endings_of`."""
        return endings_of(segment.episode for segment in self._segments if segment.ends)


class ManyHeaders(NamedTuple):
    """Values of the E parts of a message, (E,) each, named as the fields of MultiAgentBatch."""

    episode_indices: np.ndarray
    first_steps: np.ndarray
    lengths: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    agent_step_counts: np.ndarray


class _PolicyPart(NamedTuple):
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


def _rows_of(states: Sequence[np.ndarray]) -> Rows:
    return Rows([state[np.newaxis] for state in states], states[0].dtype, states[0].shape)
