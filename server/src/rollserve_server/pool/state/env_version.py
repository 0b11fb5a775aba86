"""A version of the environments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollserve_server.envs import RowSpecs, WorkerSpecs
from rollserve_server.pool.plan.placement import RowLayout

if TYPE_CHECKING:
    from rollserve_server.sampling import EnvDescription

__all__ = ["EnvVersion"]


@dataclass(frozen=True)
class EnvVersion:
    """The environments of one version.

    Attributes:
        specs: one for all workers, or one for each.
        description: their spaces, and how rows are stepped.
    """

    specs: Sequence[WorkerSpecs]
    description: EnvDescription

    @property
    def rows_differ(self) -> bool:
        """Whether the rows of a worker have environments of their own."""
        return any(isinstance(specs, RowSpecs) for specs in self.specs)

    @property
    def rows(self) -> RowLayout:
        """The rows of each worker."""
        return RowLayout(self.description.num_rows, self.description.num_episodes_per_row)
