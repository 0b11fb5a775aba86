"""Segments of episodes, and how they are distributed over messages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from rollserve_server.sampling.encode.sizes import FILL_BYTES, Sizes
from rollserve_server.sampling.protocol.orders import PLAIN
from rollserve_server.sampling.record.columns import Piece
from rollserve_wire.recurrences import forward_recurrence

if TYPE_CHECKING:
    from rollserve_server.sampling.protocol.orders import ColumnFormat
    from rollserve_server.sampling.record.columns import ColumnKey
    from rollserve_server.sampling.record.episodes import Episode
    from rollserve_server.sampling.record.infos import InfoKey

__all__ = [
    "Segment",
    "cut_into_messages",
    "discounted_after",
    "groups_of_one_shape",
    "info_keys",
    "return_after",
]

_T = TypeVar("_T")
_OwnedKey = tuple[Hashable, "InfoKey"]


class Segment(NamedTuple):
    """Consecutive steps of an episode, from `start` up to `stop`."""

    episode: Episode
    start: int
    stop: int

    @property
    def length(self) -> int:
        """Number of steps."""
        return self.stop - self.start

    @property
    def ends(self) -> bool:
        """Whether the segment holds the episode's last step."""
        return self.stop == self.episode.length

    @property
    def last_observations(self) -> Sequence[np.ndarray]:
        """Observation after the segment's last step, for each leaf of the observation space."""
        return self.episode.last_observations if self.ends else self._following("observations")

    @property
    def last_states(self) -> Sequence[np.ndarray]:
        """Recurrent states after the segment's last step, for each of the agent's states."""
        return self.episode.last_states if self.ends else self._following("states")

    @property
    def return_before(self) -> float:
        """Sum of the episode's rewards before the segment, added up step by step."""
        before = Segment(self.episode, 0, self.start).pieces() if self.start else ()
        return return_after(self.episode.return_before, before)

    def discounted_before(self, discount: float) -> float:
        """Return the discounted return of the episode before the segment."""
        if not self.start:
            return self.episode.discounted_before
        return discounted_after(self.episode.discounted_before, Segment(self.episode, 0, self.start).pieces(), discount)

    def _following(self, group: str) -> Sequence[np.ndarray]:
        """Return the values of the step after the segment, for each column of the group."""
        (following,) = Segment(self.episode, self.stop, self.stop + 1).pieces()
        return [following.first(key) for key in following.buffer.columns if key[0] == group]

    def pieces(self) -> list[Piece]:
        """Return the pieces of column buffers that hold the steps."""
        pieces = self.episode.pieces
        if self.start == 0 and self.ends:
            return pieces
        begin, selected = 0, []
        for piece in pieces:
            end = begin + piece.stop - piece.start
            start, stop = max(self.start, begin), min(self.stop, end)
            if start < stop:
                offset = piece.start - begin
                selected.append(Piece(piece.buffer, piece.row, start + offset, stop + offset))
            begin = end
        return selected


def cut_into_messages(
    episodes: Sequence[Episode],
    max_message_bytes: int,
    first_step: int = 0,
    fill_bytes: Callable[[], int] = lambda: FILL_BYTES,
    columns: ColumnFormat = PLAIN,
) -> Iterator[Sequence[Segment]]:
    """Yield the segments of each message, in order. An episode too long for one message goes on in the next.

    Args:
        episodes: finished episodes of one sequence.
        max_message_bytes: size that no message may exceed.
        first_step: step of the first episode to begin with.
        fill_bytes: returns the preferred size of the next message, which is exceeded where steps are very large.
        columns: how columns may be written.

    Raises:
        OverLimitError: a single step does not fit into a message.
    """
    for group in groups_of_one_shape(episodes, lambda episode: info_keys([episode])):
        keys = {*group[0].pieces[0].buffer.columns, *info_keys(group)}
        sizes = Sizes.of(keys, columns)
        yield from _cut(group, sizes, max_message_bytes, first_step, fill_bytes)
        first_step = 0


def return_after(total: float, pieces: Sequence[Piece]) -> float:
    """Return a sum of raw rewards after those of further steps were added one by one: `np.sum` has another order."""
    for piece in pieces:
        keys = {key[0]: key for key in piece.buffer.columns}
        (rewards,) = piece.arrays(keys.get("raw_rewards", keys["rewards"]))
        total = float(np.add.accumulate(np.append(total, rewards))[-1])
    return total


def discounted_after(before: float, pieces: Sequence[Piece], discount: float) -> float:
    """Return a discounted return after further steps."""
    keys = {key[0]: key for key in pieces[0].buffer.columns}
    terms = np.concatenate([array for piece in pieces for array in piece.arrays(keys["rewards"])], dtype=np.float64)
    return float(forward_recurrence(discount, terms, np.array([len(terms)]), np.array([before]))[-1])


def info_keys(episodes: Sequence[Episode]) -> set[ColumnKey]:
    """Return the keys of all infos that any of the episodes has."""
    keys: set[ColumnKey] = {("episode_infos", key) for episode in episodes for key in episode.reset_infos}
    return keys | {("env_infos", key) for episode in episodes for key in episode.env_infos}


def groups_of_one_shape(items: Sequence[_T], keys_of: Callable[[_T], Collection[_OwnedKey]]) -> Iterator[Sequence[_T]]:
    """Group consecutive items whose infos of one name have one shape; nearly always, one group holds all.

    Args:
        items: the items, such as episodes.
        keys_of: returns the keys of an item's infos, with their owners.
    """
    keys = {key for item in items for key in keys_of(item)}
    names = {(owner, key.name) for owner, key in keys}
    if len(names) == len({(owner, key.name, key.shape) for owner, key in keys}):
        yield items
        return
    members: list[_T] = []
    shapes: dict[tuple[Hashable, str], tuple[int, ...]] = {}
    for item in items:
        new_shapes = {(owner, key.name): key.shape for owner, key in keys_of(item)}
        if any(shapes.get(name, shape) != shape for name, shape in new_shapes.items()):
            yield members
            members, shapes = [], {}
        members.append(item)
        shapes |= new_shapes
    yield members


def _cut(
    episodes: Sequence[Episode], sizes: Sizes, limit: int, first_step: int, fill_bytes: Callable[[], int]
) -> Iterator[list[Segment]]:
    """Yield the segments of each message; see `cut_into_messages`."""

    def whole_room() -> int:
        return sizes.room(limit, fill_bytes())

    segments: list[Segment] = []
    room = whole_room()
    for episode in episodes:
        if segments and sizes.segment + episode.length * sizes.step > room:
            yield segments
            segments, room = [], whole_room()
        start, first_step = first_step, 0
        while sizes.segment + (episode.length - start) * sizes.step > room:
            stop = start + (room - sizes.segment) // sizes.step
            yield [Segment(episode, start, stop)]
            start, room = stop, whole_room()
        segments.append(Segment(episode, start, episode.length))
        room -= sizes.segment + (episode.length - start) * sizes.step
    yield segments
