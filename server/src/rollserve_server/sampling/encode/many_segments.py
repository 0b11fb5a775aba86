"""Parts of episodes with many agents, and how they are distributed over messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rollserve_server.sampling.encode.segments import Segment, groups_of_one_shape, info_keys
from rollserve_server.sampling.encode.sizes import FILL_BYTES, Sizes
from rollserve_server.sampling.protocol.orders import PLAIN

if TYPE_CHECKING:
    from collections.abc import Hashable

    from numpy.typing import NDArray

    from rollserve_server.sampling.protocol.orders import ColumnFormat
    from rollserve_server.sampling.record.columns import ColumnKey
    from rollserve_server.sampling.record.infos import InfoKey
    from rollserve_server.sampling.record.lives import Life, ManyEpisode

__all__ = ["ManySegment", "cut_many_into_messages"]

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
        going: (T + 1,), bytes of a part that begins with a step, beside its steps: those of the lives that go on.
        before: (T + 1,), bytes of all steps before a step, with those of the lives that begin with them.
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


def _info_keys(episode: ManyEpisode) -> set[tuple[Hashable, InfoKey]]:
    """Return the keys of all infos of an episode, each with its policy and group."""
    return {((life.policy, group), key) for life in episode.lives for group, key in info_keys([life.segment])}
