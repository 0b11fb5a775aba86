"""Where in which sequence of episodes calls begin, and what workers still hold for them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from rollserve_server.agents import AS_THE_AGENT_SAYS
from rollserve_server.pool.plan.placement import PerWorker
from rollserve_server.pool.plan.plan import Ledger
from rollserve_server.pool.sequences.open_sequence import OpenSequence
from rollserve_server.pool.sequences.root_seeds import derived_seed
from rollserve_server.sampling import SequenceSpec, Worker

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rollserve_server.agents import Exploration
    from rollserve_server.pool.accounts.account import Account
    from rollserve_server.pool.calls.prefetch import Prefetch
    from rollserve_server.pool.plan.placement import Placement
    from rollserve_server.pool.workers.workforce import Workforce

__all__ = ["OwnSequence", "SequenceKind", "Sequences"]


class SequenceKind(NamedTuple):
    """What episodes are a function of, beside seed and index."""

    policy_version: int
    env_version: int
    max_episode_length: int | None
    exploration: Exploration = AS_THE_AGENT_SAYS


@dataclass(eq=False)
class OwnSequence:
    """A sequence of episodes for calls that name no seed: what one has, no other has. Calls at a time have several.

    Attributes:
        seed: its root seed.
        next_index: the first episode that no call was given.
        kind: what the episodes before that one were a function of, beside the seed; None if they are no beginning of
            what the next are.
        busy: whether a call is using it.
    """

    seed: int
    next_index: int = 0
    kind: SequenceKind | None = None
    busy: bool = False

    def first_index(self, kind: SequenceKind, unit_size: int) -> int:
        """Where the next call begins, if its episodes are of that kind and so many of them run together.

        One of another kind leaves out what is left of the unit: all of it would be run for a part.
        """
        return self.next_index if kind == self.kind else -(-self.next_index // unit_size) * unit_size

    def go_on(self, next_index: int, kind: SequenceKind | None) -> None:
        """Takes in where a call has ended."""
        self.next_index, self.kind = next_index, kind


class Sequences:
    """Keeps streams open from call to call. What no call can use any more is dropped, and counted."""

    def __init__(self, own_seed: int, max_kept: int, ids: Iterator[int]) -> None:
        """Begins without streams.

        Args:
            own_seed: the root seed of the first lane, from which those of the others derive.
            max_kept: how many streams may be open while no call uses them.
            ids: names for streams.
        """
        self._own_seed = own_seed
        self._num_seeds = 0
        self._own = [OwnSequence(own_seed)]
        self._max_kept = max_kept
        self._kept: list[OpenSequence] = []
        self._ids = ids
        self._num_superseded_steps = 0
        self._num_cancelled_steps = 0
        self._prefetched_accounts: list[Account] = []
        self._dropping: set[asyncio.Task[None]] = set()

    @property
    def first_own(self) -> OwnSequence:
        """The one that calls have which come one after the other."""
        return self._own[0]

    @contextlib.contextmanager
    def own(self) -> Iterator[OwnSequence]:
        """The first lane that no other call is using, for as long as the block."""
        own = next((own for own in self._own if not own.busy), None)
        if own is None:
            own = OwnSequence(self._next_seed())
            self._own.append(own)
        own.busy = True
        try:
            yield own
        finally:
            own.busy = False

    def renew(self, own: OwnSequence) -> None:
        """Has a lane begin another sequence: a client may still be going on with the one that it had."""
        own.seed = self._next_seed()
        own.go_on(0, None)

    def _next_seed(self) -> int:
        self._num_seeds += 1
        return derived_seed(self._own_seed, (self._num_seeds,))

    def open(self, wanted: SequenceSpec, first_index: int, placement: Placement, workforce: Workforce) -> OpenSequence:
        """The stream that a call is to have for itself: one that was kept and stands at that index, or a new one.

        Args:
            wanted: what its episodes are a function of; its name does not count.
            first_index: the first episode that is to be delivered.
            placement: where its episodes run.
            workforce: the workers of the call, which are those that there are.
        """
        opened = None
        for kept in list(self._kept):
            if _kind(kept.spec) == _kind(wanted) and kept.placement == placement:
                if opened is None and kept.ledger.next_index == first_index:
                    opened = kept
                    self._kept.remove(kept)
            elif kept.spec.root_seed == wanted.root_seed:  # the sequence goes on in another way
                self._kept.remove(kept)
                self._supersede(kept)
        return opened or self._new(wanted, first_index, placement, workforce)

    def keep(self, sequence: OpenSequence) -> None:
        """Takes back the stream of a call that is complete."""
        # No call goes on with such episodes of another, nor with those of another team.
        if isinstance(sequence.placement, PerWorker) or not sequence.workforce.is_current:
            self._supersede(sequence)
        else:
            self._keep(sequence)

    def keep_prefetched(self, prefetch: Prefetch, *, drop: bool) -> None:
        """Takes back the stream of what was sampled ahead of a call, for that call, unless it is to be dropped."""
        self._prefetched_accounts.append(prefetch.account)
        if prefetch.has_failed:
            self.cancel(prefetch.sequence)
        elif drop:
            self._supersede(prefetch.sequence)
        else:
            self._keep(prefetch.sequence)

    def cancel(self, sequence: OpenSequence, num_discarded_steps: int = 0) -> None:
        """Takes back the stream of a call that has ended early: its workers stop and forget it.

        Args:
            sequence: which stream.
            num_discarded_steps: how many of its steps were thrown away already, and no account tells of.
        """
        self._num_cancelled_steps += sequence.num_held_steps + num_discarded_steps
        self._drop(sequence, cancelled=True)

    def drop_kept(self) -> None:
        """Cancellations all that is kept."""
        while self._kept:
            self._supersede(self._kept.pop())

    def drop_outdated(self, policy_version: int, env_version: int) -> None:
        """Cancellations what is kept of other versions than these."""
        for kept in list(self._kept):
            if (kept.spec.policy_version, kept.spec.env_version) != (policy_version, env_version):
                self._kept.remove(kept)
                self._supersede(kept)

    def take_dropped(self, account: Account) -> None:
        """Enters what was dropped since this was last asked into an account."""
        account.num_superseded_steps += self._num_superseded_steps
        account.num_cancelled_steps += self._num_cancelled_steps
        account.num_carried_steps += self._num_superseded_steps + self._num_cancelled_steps
        self._num_superseded_steps = self._num_cancelled_steps = 0
        while self._prefetched_accounts:
            account.add_prefetched(self._prefetched_accounts.pop())

    def _new(self, wanted: SequenceSpec, first_index: int, placement: Placement, workforce: Workforce) -> OpenSequence:
        sequence = dataclasses.replace(wanted, work_id=next(self._ids))
        return OpenSequence.begin(sequence, placement, Ledger(first_index), workforce)

    def _keep(self, sequence: OpenSequence) -> None:
        self._kept.append(sequence)
        while len(self._kept) > self._max_kept:
            self._supersede(self._kept.pop(0))

    def _supersede(self, sequence: OpenSequence) -> None:
        self._num_superseded_steps += sequence.num_held_steps
        self._drop(sequence, cancelled=False)

    def _drop(self, sequence: OpenSequence, *, cancelled: bool) -> None:
        for handle, in_flight in zip(sequence.handles, sequence.in_flight, strict=True):
            if handle is not None and in_flight:
                handle.stop(sequence.spec.work_id)
        if not any(sequence.handles) and not any(sequence.in_flight):  # the workers have closed it themselves
            return
        # Begun here, so that workers hear of it before anything that comes after.
        closing = [
            asyncio.ensure_future(handle.call(Worker.close_work, sequence.spec.work_id))
            for handle in sequence.handles
            if handle is not None
        ]
        task = asyncio.create_task(self._finish_closing(sequence, closing, cancelled=cancelled))
        self._dropping.add(task)
        task.add_done_callback(self._dropping.discard)

    async def _finish_closing(
        self, sequence: OpenSequence, closing: Sequence[asyncio.Future[None]], *, cancelled: bool
    ) -> None:
        """Counts what workers had still been doing for a stream until they closed it."""
        await asyncio.gather(*closing, return_exceptions=True)
        coming = [in_flight.report for queue in sequence.in_flight for in_flight in queue]
        for report in await asyncio.gather(*coming, return_exceptions=True):
            if isinstance(report, BaseException):
                continue
            if cancelled:
                self._num_cancelled_steps += report.num_simulated_steps
            else:
                self._num_superseded_steps += report.num_simulated_steps


def _kind(sequence: SequenceSpec) -> SequenceSpec:
    """What a stream's episodes are a function of, beside their indices."""
    return dataclasses.replace(sequence, work_id=0)
