"""Owner of a sampler: the server that has its lease, and what that server gets with the lease."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollserve_server.pool.state.sampler_state import SamplerState

__all__ = ["LeaseAnswer", "Owner"]


@dataclass(frozen=True)
class Owner:
    """A server, by its machine and its process there."""

    host: str
    process_id: int


@dataclass(frozen=True)
class LeaseAnswer:
    """The journal's answer to a server that asks for the lease.

    Attributes:
        epoch: epoch of the server; None if another server has the lease.
        state: state of the sampler that an earlier server left, if there is one.
        owner: the server that had the lease before, or has it.
        num_renewals: number of renewals by that server; see `Lease`.
        follows_loss: whether the sampler of an earlier server was lost, together with its journal.
    """

    epoch: int | None
    state: SamplerState | None
    owner: Owner | None
    num_renewals: int
    follows_loss: bool = False
