"""The ledger of a sequence: its episodes that were begun and are not claimed yet."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollserve_server.pool.accounts.env_failures import FailedEpisode

__all__ = ["Ledger"]


@dataclass
class Ledger:
    """A stream's episodes that were begun and not yet claimed.

    Attributes:
        next_index: the first index that is not claimed.
        workers: of each such episode, where it is.
        sizes: of each finished one, its steps and approximate bytes.
        failed: those that were given up, because their environments failed; they are on no worker any more.
        duplicates: of each that was begun a second time, and is awaited there, on which worker.
    """

    next_index: int
    workers: dict[int, int] = field(default_factory=dict)
    sizes: dict[int, tuple[int, int]] = field(default_factory=dict)
    failed: dict[int, FailedEpisode] = field(default_factory=dict)
    duplicates: dict[int, int] = field(default_factory=dict)
