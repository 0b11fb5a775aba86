"""Environments of a worker's rows: the same for all, or one for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollserve import EnvSpec

__all__ = ["RowSpecs", "WorkerSpecs", "specs_of_rows"]


@dataclass(frozen=True)
class RowSpecs:
    """Environments that may differ between the rows of a worker, so that each episode belongs to a row.

    Attributes:
        specs: environment of each row, in the order of rows.
    """

    specs: tuple[EnvSpec, ...]


WorkerSpecs = EnvSpec | RowSpecs
"""Environments of a worker: the same for all rows, or one for each."""


def specs_of_rows(specs: WorkerSpecs, num_rows: int) -> Sequence[EnvSpec]:
    """Return the environment of each row."""
    return specs.specs if isinstance(specs, RowSpecs) else (specs,) * num_rows
