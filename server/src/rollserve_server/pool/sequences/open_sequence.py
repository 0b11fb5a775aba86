"""An open sequence: which of its episodes were begun, where they are, and what workers hold, from call to call."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from rollserve_server.pool.sequences.cancellations import Cancellations
from rollserve_server.pool.sequences.open_work import OpenWork
from rollserve_server.sampling import Order, Report

if TYPE_CHECKING:
    from rollserve_server.pool.plan.ledger import Ledger
    from rollserve_server.pool.plan.placement import Placement
    from rollserve_server.pool.workers.workforce import Workforce
    from rollserve_server.sampling import Claim, SequenceSpec

__all__ = ["OpenSequence"]


class OpenSequence(OpenWork[Order, Report]):
    """A sequence whose episodes workers have begun.

    Attributes:
        spec: what its episodes are a function of, and the name of the workers' work on it.
        placement: which worker an episode belongs to.
        ledger: episodes that were begun and are not claimed.
        releases: for each slot, claims that the worker keeps although they are delivered, because it wrote them early.
        cancellations: for each slot, cancelled episodes that the worker may still have.
        claim_names: names for claims.
        begun_at: for each running episode, when its order was sent.
    """

    def __init__(self, spec: SequenceSpec, placement: Placement, ledger: Ledger, workforce: Workforce) -> None:
        super().__init__(spec.work_id, workforce)
        self.spec = spec
        self.placement = placement
        self.ledger = ledger
        self.releases: list[list[Claim]] = [[] for _ in workforce]
        self.cancellations = [Cancellations() for _ in workforce]
        self.claim_names = itertools.count()
        self.begun_at: dict[int, float] = {}
