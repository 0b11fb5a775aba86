"""Column buffers that rows write into step by step, and pieces of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rollserve_server.sampling.record.infos import InfoKey

__all__ = ["ColumnBuffer", "ColumnKey", "Piece", "copy_pieces"]

ColumnKey = tuple[str, InfoKey]
"""Key of a column: its group, and its name, dtype and shape.

The groups are `observations`, `actions`, `rewards`, `agent_infos`, `states` (recurrent states before each step),
`env_infos` and `episode_infos`.
"""


@dataclass(eq=False, slots=True)
class ColumnBuffer:
    """Preallocated columns for M rows and a number of steps.

    Attributes:
        columns: (M, steps, *shape) each, so that a piece of a row is contiguous.
    """

    columns: Mapping[ColumnKey, np.ndarray]

    def group(self, name: str) -> list[np.ndarray]:
        """Return the columns of a group, in the order of the keys."""
        return [column for (group, _), column in self.columns.items() if group == name]


class Piece(NamedTuple):
    """Consecutive steps of one row in a column buffer."""

    buffer: ColumnBuffer
    row: int
    start: int
    stop: int

    @property
    def num_steps(self) -> int:
        """Number of steps."""
        return self.stop - self.start


def copy_pieces(pieces: Sequence[Piece]) -> Iterator[Piece]:
    """Copy pieces of one buffer into a new buffer that holds nothing else, and yield the copies in the same order."""
    columns = {
        key: np.concatenate([column[row, start:stop] for _, row, start, stop in pieces])[np.newaxis]
        for key, column in pieces[0].buffer.columns.items()
    }
    buffer, stop = ColumnBuffer(columns), 0
    for piece in pieces:
        start, stop = stop, stop + piece.num_steps
        yield Piece(buffer, 0, start, stop)
