"""One evaluation: a call whose episodes tell what they came to."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from rollserve_server.errors import OverLimitError
from rollserve_server.pool.calls.episodes import EpisodeCall

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence, Sized

    from rollserve_server.pool.accounts.env_failures import FailedEpisode
    from rollserve_server.pool.backends.backend import WorkerHandle
    from rollserve_server.sampling import Order, Outcome, Report

__all__ = ["EvaluationCall"]


class EvaluationCall(EpisodeCall):
    """See EpisodeCall. Its stream is for it alone: what was begun beyond its end is thrown away."""

    num_members = 1

    def __init__(self, *arguments: Any) -> None:
        """Takes what EpisodeCall takes."""
        super().__init__(*arguments)
        self._outcomes: dict[int, Outcome] = {}

    @property
    def outcomes(self) -> Sequence[Outcome]:
        """What the episodes came to that are claimed, in the order of their indices, but for those left out."""
        claimed = range(self.account.first_episode_index, self.sequence.ledger.next_index)
        return [self._outcomes[index] for index in claimed if index in self._outcomes]

    @property
    def work_id(self) -> int:
        """The name that its workers know it by."""
        return self.sequence.spec.work_id

    @property
    def handles(self) -> Sequence[WorkerHandle | None]:
        """The workers that have a part in it."""
        return self.sequence.handles

    @property
    def in_flight(self) -> Sequence[Sized]:
        """Of each worker, orders that have not been answered."""
        return self.sequence.in_flight

    def _next_order(self, worker: int, stuck: bool) -> Order | None:
        """See EpisodeCall."""
        order = super()._next_order(worker, stuck)
        return order and dataclasses.replace(order, tell_outcomes=True)

    def _take(self, worker: int, report: Report) -> None:
        """See EpisodeCall."""
        # Of an episode that ran again, what counts is what is delivered.
        self._outcomes.update((outcome.episode_index, outcome) for outcome in report.outcomes)
        try:
            super()._take(worker, report)
        except OverLimitError as error:  # of a message: in these requests its limit stands elsewhere
            error.field = "episodes.max_message_bytes"
            raise

    def _skip(self, episodes: Mapping[int, FailedEpisode]) -> None:
        """See EpisodeCall."""
        for index in episodes:
            self._outcomes.pop(index, None)  # it may have ended well on a worker that was lost
        super()._skip(episodes)

    def _end(self) -> None:
        """See EpisodeCall."""
        self.account.num_idle_steps += self.sequence.num_held_steps
