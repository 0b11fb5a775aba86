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
    """Consecutive environment steps of an episode, from `start` up to `stop`."""

    episode: ManyEpisode
    start: int
    stop: int

    @property
    def ends(self) -> bool:
        """Whether it holds the episode's last step."""
        return self.stop == self.episode.length

    def lives(self) -> Iterator[tuple[Life, Segment, NDArray[np.uint32]]]:
        """Yield the lives that have steps here, with these steps, and their environment steps."""
        for life in self.episode.lives:
            steps = life.steps
            first, last = (int(end) for end in np.searchsorted(steps, (self.start, self.stop)))
            if first < last:
                yield life, Segment(life.segment, first, last), steps[first:last]


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
    """Upper bounds for the bytes of messages with parts of some episodes.

    Attributes:
        sizes: bounds for a message, for a part of any of the episodes, and for any step.
    """

    def __init__(self, episodes: Sequence[ManyEpisode], columns: ColumnFormat) -> None:
        keys: dict[int, set[ColumnKey]] = {}
        for episode in episodes:
            for life in episode.lives:
                of_policy = keys.setdefault(life.policy, set())
                of_policy.update(life.segment.pieces[0].buffer.columns, info_keys([life.segment]))
        self._of_policy = {policy: Sizes.of(its, columns) for policy, its in keys.items()}
        message = sum(sizes.message + _POLICY_BYTES for sizes in self._of_policy.values()) + _NAMES_BYTES
        step = max(int(self.steps(episode).max()) for episode in episodes)
        self.sizes = Sizes(message, max(map(self.part, episodes)), step)

    def part(self, episode: ManyEpisode) -> int:
        """Return the bytes of a part of an episode without its steps."""
        return _EPISODE_BYTES + sum(self._of_policy[life.policy].segment + _LIFE_BYTES for life in episode.lives)

    def steps(self, episode: ManyEpisode) -> NDArray[np.int64]:
        """Return the bytes of each environment step of an episode."""
        costs = np.zeros(episode.length, np.int64)
        for life in episode.lives:
            costs[life.steps] += self._of_policy[life.policy].step + _STEP_BYTES
        return costs


def _cut(
    episodes: Sequence[ManyEpisode], costs: _Costs, limit: int, first_step: int, fill_bytes: Callable[[], int]
) -> Iterator[list[ManySegment]]:
    """Yield the parts of each message; see `cut_many_into_messages`."""

    def whole_room() -> int:
        return costs.sizes.room(limit, fill_bytes())

    segments: list[ManySegment] = []
    room = whole_room()
    for episode in episodes:
        part, before = costs.part(episode), np.append(0, np.cumsum(costs.steps(episode)))
        start, first_step = first_step, 0
        if segments and part + before[-1] - before[start] > room:
            yield segments
            segments, room = [], whole_room()
        while part + before[-1] - before[start] > room:
            stop = int(np.searchsorted(before, before[start] + room - part, "right")) - 1
            yield [ManySegment(episode, start, stop)]
            start, room = stop, whole_room()
        segments.append(ManySegment(episode, start, episode.length))
        room -= int(part + before[-1] - before[start])
    yield segments


def _info_keys(episode: ManyEpisode) -> set[tuple[Hashable, InfoKey]]:
    """Return the keys of all infos of an episode, each with its policy and group."""
    return {((life.policy, group), key) for life in episode.lives for group, key in info_keys([life.segment])}
