"""Evaluations: episode calls that report the outcome of each episode."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from rollserve_server.errors import OverLimitError
from rollserve_server.pool.calls.episodes import EpisodeCall
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rollserve_server.pool.accounts.env_failures import FailedEpisode
    from rollserve_server.pool.backends.backend import WorkerHandle
    from rollserve_server.pool.sequences.in_flight import InFlight
    from rollserve_server.sampling import Order, Outcome, Report

__all__ = ["EvaluationCall"]


class EvaluationCall(EpisodeCall):
    """An episode call whose sequence is for it alone: what was begun beyond its end is discarded."""

    num_members = 1

    def __init__(self, *arguments: Any) -> None:
        """Take the arguments of `EpisodeCall`."""
        super().__init__(*arguments)
        self._outcomes: dict[int, Outcome] = {}

    @property
    def outcomes(self) -> Sequence[Outcome]:
        """Outcomes of the claimed episodes in the order of their indices, without skipped ones."""
        claimed = range(self.account.first_episode_index, self.sequence.ledger.next_index)
        return [self._outcomes[index] for index in claimed if index in self._outcomes]

    def _next_order(self, worker: int, handle: WorkerHandle) -> Order | None:
        order = super()._next_order(worker, handle)
        return order and dataclasses.replace(order, report_outcomes=True)

    def _take_report(self, worker: int, sent: InFlight[Order, Report], report: Report) -> None:
        # Of an episode that ran again, the outcome that counts belongs to the run that is delivered.
        self._outcomes.update((outcome.episode_index, outcome) for outcome in report.outcomes)
        try:
            super()._take_report(worker, sent, report)
        except OverLimitError as error:
            if error.reason is Reason.MESSAGE_TOO_SMALL:  # the limit has another place in requests for evaluations
                error.field = "episodes.max_message_bytes"
            raise

    def _skip(self, episodes: Mapping[int, FailedEpisode]) -> None:
        for index in episodes:
            self._outcomes.pop(index, None)  # it may have ended well on a worker that was lost
        super()._skip(episodes)

    def _end(self) -> None:
        self.account.num_idle_steps += self.sequence.num_held_steps
        self.sequence.close()
