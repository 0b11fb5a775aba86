"""Which environment each row of a worker has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollserve import EnvSpec

__all__ = ["RowSpecs", "WorkerSpecs", "specs_of_rows"]


@dataclass(frozen=True)
class RowSpecs:
    """Environments that may differ between the rows of a worker, so that each episode belongs to a row.

    Attributes:
        specs: one for each row, in their order.
    """

    specs: tuple[EnvSpec, ...]


WorkerSpecs = EnvSpec | RowSpecs
"""What a worker's environments are made from: the same for all of its rows, or one for each."""


def specs_of_rows(specs: WorkerSpecs, num_rows: int) -> Sequence[EnvSpec]:
    """What each row's environment is made from."""
    return specs.specs if isinstance(specs, RowSpecs) else (specs,) * num_rows
