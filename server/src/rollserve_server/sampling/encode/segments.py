"""Which steps of which episodes go into which message."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rollserve import Reason
from rollserve_server.errors import OverLimitError
from rollserve_server.sampling.record.episodes import Episode, Piece

if TYPE_CHECKING:
    import numpy as np

    from rollserve_server.sampling.record.episodes import ColumnKey

__all__ = ["GOAL_BYTES", "STATE_PREFIX", "Segment", "Sizes", "cut_into_messages", "info_keys"]

GOAL_BYTES = 2 << 20
"""What a message is filled up to: of 1 to 4 MiB, this takes the least CPU time through gRPC on both sides."""
STATE_PREFIX = "state/"
"""Before the name of a state that is told with each step, among the agent's infos."""
_GOAL_STEPS = 16
"""But for steps so large that it would be a waste to have a last observation beside every few of them."""
_HEADER_BYTES = 64
"""More than a column's type, shape and lengths take without its name, and more than all headers of a segment."""
_NUM_HEADERS = 8


class Segment(NamedTuple):
    """Steps of an episode, from `start` up to `stop`."""

    episode: Episode
    start: int
    stop: int

    @property
    def ends(self) -> bool:
        """Whether it holds the episode's last step."""
        return self.stop == self.episode.length

    @property
    def last_observations(self) -> Sequence[np.ndarray]:
        """For each leaf, the observation after the segment's last step."""
        if self.ends:
            return self.episode.last_observations
        (following,) = Segment(self.episode, self.stop, self.stop + 1).pieces()
        columns = following.buffer.columns.items()
        return [column[following.row, following.start] for (group, _), column in columns if group == "observations"]

    def pieces(self) -> list[Piece]:
        """Where the steps stand."""
        pieces = self.episode.pieces
        if self.start == 0 and self.ends:
            return pieces
        begin, wanted = 0, []
        for piece in pieces:
            end = begin + piece.stop - piece.start
            start, stop = max(self.start, begin), min(self.stop, end)
            if start < stop:
                offset = piece.start - begin
                wanted.append(Piece(piece.buffer, piece.row, start + offset, stop + offset))
            begin = end
        return wanted


def cut_into_messages(
    episodes: Sequence[Episode],
    max_message_bytes: int,
    first_step: int = 0,
    goal_bytes: Callable[[], int] = lambda: GOAL_BYTES,
    *,
    all_states: bool = False,
) -> Iterator[Sequence[Segment]]:
    """The segments of each message, in order. An episode too long for a message is cut, and goes on in the next.

    Args:
        episodes: finished episodes of one stream.
        max_message_bytes: the size that no message may exceed.
        first_step: of the first episode, the step to begin with.
        goal_bytes: asked before each message for how much it is to hold; it holds more where steps are very large.
        all_states: whether states of each step are written too.

    Raises:
        OverLimitError: a single step does not fit into a message.
    """
    for group in _groups_of_one_shape(episodes):
        keys = {*group[0].pieces[0].buffer.columns, *info_keys(group)}
        sizes = Sizes.of(keys, all_states=all_states)
        yield from _cut(group, sizes, max_message_bytes, first_step, goal_bytes)
        first_step = 0


def info_keys(episodes: Sequence[Episode]) -> set[ColumnKey]:
    """The infos of environments that any of the episodes has a value of."""
    keys: set[ColumnKey] = {("episode_infos", key) for episode in episodes for key in episode.reset_infos}
    return keys | {("env_infos", key) for episode in episodes for key in episode.env_infos}


def _groups_of_one_shape(episodes: Sequence[Episode]) -> Iterator[Sequence[Episode]]:
    """Consecutive episodes whose infos of one name have one shape. Nearly always that is all of them."""
    keys = info_keys(episodes)
    names = {(group, key.name) for group, key in keys}
    if len(names) == len({(group, key.name, key.shape) for group, key in keys}):
        yield episodes
        return
    members: list[Episode] = []
    shapes: dict[tuple[str, str], tuple[int, ...]] = {}
    for episode in episodes:
        its_shapes = {(group, key.name): key.shape for group, key in info_keys([episode])}
        if any(shapes.get(name, shape) != shape for name, shape in its_shapes.items()):
            yield members
            members, shapes = [], {}
        members.append(episode)
        shapes |= its_shapes
    yield members


class Sizes(NamedTuple):
    """How many bytes a message takes at most by itself, and for each segment and each step in it."""

    message: int
    segment: int
    step: int

    @classmethod
    def of(cls, keys: Iterable[ColumnKey], *, all_states: bool) -> Sizes:
        """Those of messages with these columns; for `all_states` see ColumnFormat."""
        message, segment, step = _HEADER_BYTES * (_NUM_HEADERS + 1), _HEADER_BYTES, 0
        for group, key in keys:
            of_segments = group in ("observations", "episode_infos", "states")
            of_steps = group != "episode_infos" and (group != "states" or all_states)
            num_columns = 1 + of_segments + (group in ("env_infos", "episode_infos"))  # last ones and masks
            prefix = len(STATE_PREFIX) * (group == "states")
            header = _HEADER_BYTES + 10 * len(key.shape) + prefix + len(key.name.encode()) + 1
            row = key.dtype.itemsize * math.prod(key.shape)
            mask = group in ("env_infos", "episode_infos")
            message += header * num_columns
            segment += (row + mask) * of_segments
            step += (row + mask) * of_steps
        return cls(message, segment, step)

    def room(self, limit: int, goal: int) -> int:
        """How many bytes of segments and steps a message is to have.

        Args:
            limit: how many bytes it may have in all.
            goal: how many it is to have; more where steps are very large.

        Raises:
            OverLimitError: a single step does not fit.
        """
        smallest = sum(self)
        if smallest > limit:
            text = f"{limit} came, but a message with a single step takes {smallest} bytes"
            raise OverLimitError(text, reason=Reason.MESSAGE_TOO_SMALL, field="options.max_message_bytes")
        return min(limit, max(goal, smallest + _GOAL_STEPS * self.step)) - self.message


def _cut(
    episodes: Sequence[Episode], sizes: Sizes, limit: int, first_step: int, goal_bytes: Callable[[], int]
) -> Iterator[list[Segment]]:
    def whole_room() -> int:
        return sizes.room(limit, goal_bytes())

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
