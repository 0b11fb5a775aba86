"""A version of the environments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollserve_server.envs import RowSpecs, WorkerSpecs
from rollserve_server.pool.plan.ledger import Placement, RoundRobin

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollserve_server.sampling import EnvDescription

__all__ = ["EnvVersion"]


@dataclass(frozen=True)
class EnvVersion:
    """The environments of one version.

    Attributes:
        specs: one for all workers, or one for each.
        description: their spaces, and how rows are stepped.
        client_id: id of the client that made the version; empty for none in particular.
    """

    specs: Sequence[WorkerSpecs]
    description: EnvDescription
    client_id: str = ""

    @property
    def rows_differ(self) -> bool:
        """Whether the rows of a worker have environments of their own."""
        return any(isinstance(specs, RowSpecs) for specs in self.specs)

    def unit_size(self, placement: Placement) -> int:
        """Return the number of episodes in a work unit: 1 where rows are stepped one by one."""
        num_episodes_per_row = self.description.num_episodes_per_row
        if num_episodes_per_row is None:
            return 1
        # Workers that differ take turns as often as possible.
        return self.description.num_rows * (1 if isinstance(placement, RoundRobin) else num_episodes_per_row)
