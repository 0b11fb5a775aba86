"""Numbers of rows in which a model may be called."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Batching"]


class Batching(NamedTuple):
    """Numbers of rows that give a row the same bits, whatever its neighbours and its position.

    Attributes:
        multiple: divisor of all these numbers.
        max_rows: largest of them.
    """

    multiple: int
    max_rows: int
