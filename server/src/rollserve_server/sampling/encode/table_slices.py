"""Slices of fragment tables, one for each message."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rollserve_server.sampling.encode.segments import return_after
from rollserve_server.sampling.encode.sizes import Sizes
from rollserve_server.sampling.protocol.orders import PLAIN

if TYPE_CHECKING:
    from rollserve_server.sampling.encode.tables import FragmentTable
    from rollserve_server.sampling.protocol.orders import ColumnFormat
    from rollserve_server.sampling.record.columns import Piece

__all__ = ["TableSlice", "cut_table"]


@dataclass(frozen=True, eq=False)
class TableSlice:
    """Consecutive steps of a table, for one message.

    Attributes:
        fragments: the fragments that the steps belong to.
        first_step: step of the first fragment that the slice begins with.
        last_step: step of the last fragment that the slice ends before; None if it holds the fragment's end.
    """

    fragments: FragmentTable
    first_step: int
    last_step: int | None

    @property
    def num_bytes(self) -> int:
        """Approximate memory of the fragments whose end the slice holds, without their steps."""
        return self.fragments.select(0, len(self.fragments) - (not self.ends)).num_bytes

    @property
    def ends(self) -> bool:
        """Whether the slice holds the last fragment's last step."""
        return self.last_step is None

    def pieces_before(self) -> Sequence[Piece]:
        """Return the pieces of column buffers with the steps of the first fragment that the slice begins behind."""
        table = self.fragments
        start = int(table.starts[0])
        return table.columns.pieces(int(table.rows[0]), start, start + self.first_step)

    def segments(self) -> FragmentTable:
        """Return the table with only those steps of its first and last fragment that the slice holds."""
        table = self.fragments
        if self.first_step == 0 and self.ends:
            return table
        starts, stops, first_steps = table.starts.copy(), table.stops.copy(), table.first_steps.copy()
        returns_before = table.returns_before
        if self.last_step is not None:
            stops[-1] = starts[-1] + self.last_step
        if self.first_step:
            returns_before = np.append(return_after(returns_before[0], self.pieces_before()), returns_before[1:])
        starts[0] += self.first_step
        first_steps[0] += self.first_step
        segments = dataclasses.replace(
            table, starts=starts, stops=stops, first_steps=first_steps, returns_before=returns_before
        )
        return segments if self.ends else _with_open_end(segments)


def cut_table(
    table: FragmentTable,
    max_message_bytes: int,
    first_step: int,
    fill_bytes: Callable[[], int],
    columns: ColumnFormat = PLAIN,
) -> Iterator[TableSlice]:
    """Yield the content of each message, in order. A fragment too long for one message goes on in the next.

    Args:
        table: the fragments.
        max_message_bytes: size that no message may exceed.
        first_step: step of the first fragment to begin with.
        fill_bytes: returns the preferred size of the next message, which is exceeded where steps are very large.
        columns: how columns may be written.

    Raises:
        OverLimitError: a single step does not fit into a message.
    """
    sizes = Sizes.of({*table.columns.keys, *table.info_keys}, columns)
    ends = np.cumsum(sizes.segment + table.lengths * sizes.step)
    fragment = 0
    while fragment < len(table):
        room = sizes.room(max_message_bytes, fill_bytes())
        begin = (ends[fragment - 1] if fragment else 0) + first_step * sizes.step
        stop = int(np.searchsorted(ends, begin + room, "right"))
        if stop > fragment:
            yield TableSlice(table.select(fragment, stop), first_step, None)
            fragment, first_step = stop, 0
        else:
            last_step = first_step + (room - sizes.segment) // sizes.step
            yield TableSlice(table.select(fragment, fragment + 1), first_step, last_step)
            first_step = last_step


def _with_open_end(segments: FragmentTable) -> FragmentTable:
    """Return the segments with a last one that goes on: its last observation is the next one of its episode."""
    terminated, truncated = segments.terminated.copy(), segments.truncated.copy()
    terminated[-1] = truncated[-1] = False
    stop = int(segments.stops[-1])
    (following,) = segments.columns.pieces(int(segments.rows[-1]), stop, stop + 1)
    last = {}
    for group, columns in (("observations", segments.last_observations), ("states", segments.last_states)):
        last[group] = [column.copy() for column in columns]
        keys = [key for key in segments.columns.keys if key[0] == group]
        for column, key in zip(last[group], keys, strict=True):
            column[-1] = following.first(key)
    return dataclasses.replace(
        segments,
        terminated=terminated,
        truncated=truncated,
        last_observations=last["observations"],
        last_states=last["states"],
    )
