"""Sequences of whole episodes: where calls begin, from which seeds, and what workers hold for the next call."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rollserve_server.futures import in_background
from rollserve_server.pool.plan.ledger import Ledger, PerWorker
from rollserve_server.pool.sequences.open_work import DroppedSteps, OpenSequence
from rollserve_server.pool.state.saved_sampler import SavedOwnSequence, SavedOwnSequences

if TYPE_CHECKING:
    from rollserve_server.pool.accounts import Account
    from rollserve_server.pool.plan.ledger import Placement
    from rollserve_server.pool.workers.slots import Workforce
    from rollserve_server.sampling import SequenceSpec


__all__ = ["DerivedSeeds", "OwnSequence", "Sequences", "derived_seed"]


def derived_seed(seed: int, key: tuple[int, ...]) -> int:
    """Return a root seed of 64 bits, by numpy's SeedSequence: another one for each seed and key."""
    words = np.random.SeedSequence(seed, spawn_key=key).generate_state(2)
    return int(words[0]) << 32 | int(words[1])


class DerivedSeeds(Iterator[int]):
    """The root seeds whose keys begin with one key and end with 1, 2, 3 and so on.

    Attributes:
        num_drawn: number of seeds that were drawn.
    """

    def __init__(self, seed: int, key: tuple[int, ...] = (), num_drawn: int = 0) -> None:
        """Begin behind the seeds that were drawn before."""
        self._seed, self._key = seed, key
        self.num_drawn = num_drawn

    def __next__(self) -> int:
        self.num_drawn += 1
        return derived_seed(self._seed, (*self._key, self.num_drawn))


@dataclass(eq=False)
class OwnSequence:
    """A sequence that one call after the other continues; calls at the same time have several.

    Attributes:
        seed: root seed of the sequence.
        next_index: index of the first episode that no call has got.
        spec: spec of the episodes before it, as of `_content_of`; None if they are no beginning of what follows.
        is_busy: whether a call uses the sequence.
    """

    seed: int
    next_index: int = 0
    spec: SequenceSpec | None = None
    is_busy: bool = False

    def first_index(self, spec: SequenceSpec, unit_size: int) -> int:
        """Return the index at which the next call begins, whose episodes have this spec and run in such units.

        A call with another spec leaves out the rest of the unit: all of the unit would run for a part of it.
        """
        return self.next_index if _content_of(spec) == self.spec else -(-self.next_index // unit_size) * unit_size

    def continue_at(self, next_index: int, spec: SequenceSpec | None) -> None:
        """Record where a call has ended."""
        self.next_index, self.spec = next_index, spec and _content_of(spec)


def _content_of(spec: SequenceSpec) -> SequenceSpec:
    """Return a spec without the name of the work, so that equal specs have equal episodes."""
    return dataclasses.replace(spec, work_id=0)


class Sequences:
    """Open sequences, kept from call to call. A sequence that no call can continue is closed, and its steps counted.

    Attributes:
        max_kept: number of sequences that stay open while no call uses them.
    """

    def __init__(self, own_seed: int, max_kept: int, ids: Iterator[int]) -> None:
        """Start without open sequences.

        Args:
            own_seed: root seed of the first own sequence, from which the seeds of the others derive.
            max_kept: number of sequences that stay open while no call uses them.
            ids: names for workers' work.
        """
        self._own_seed, self._seeds = own_seed, DerivedSeeds(own_seed)
        self._own = [OwnSequence(own_seed)]
        self.max_kept = max_kept
        self._kept: list[OpenSequence] = []
        self._ids = ids
        self._dropped = DroppedSteps()
        self._prefetched: list[Account] = []

    def save(self, num_row_seeds: int) -> SavedOwnSequences:
        """Return where the own sequences stand, beside a number of row seeds; a call that runs has not begun."""
        own = [SavedOwnSequence(each.seed, each.next_index, each.spec) for each in self._own]
        return SavedOwnSequences(self._own_seed, self._seeds.num_drawn, own, num_row_seeds)

    def restore(self, saved: SavedOwnSequences) -> None:
        """Go on with saved own sequences, before any call."""
        self._own_seed, self._seeds = saved.seed, DerivedSeeds(saved.seed, num_drawn=saved.num_drawn)
        self._own = [OwnSequence(each.seed, each.next_index, each.spec) for each in saved.sequences]

    @property
    def first_own(self) -> OwnSequence:
        """The own sequence that calls use which come one after the other."""
        return self._own[0]

    @contextlib.contextmanager
    def own(self) -> Iterator[OwnSequence]:
        """Lend the first own sequence that no other call uses, for the duration of the block."""
        own = next((own for own in self._own if not own.is_busy), None)
        if own is None:
            own = OwnSequence(next(self._seeds))
            self._own.append(own)
        own.is_busy = True
        try:
            yield own
        finally:
            own.is_busy = False

    def renew(self, own: OwnSequence) -> None:
        """Give an own sequence another seed: a client may still resume the call that it was used for."""
        own.seed = next(self._seeds)
        own.continue_at(0, None)

    def open(self, wanted: SequenceSpec, first_index: int, placement: Placement, workforce: Workforce) -> OpenSequence:
        """Return the sequence that a call has for itself: a kept one that stands at the index, or a new one.

        Args:
            wanted: what its episodes are a function of; its name does not count.
            first_index: index of the first episode to deliver.
            placement: which worker an episode belongs to.
            workforce: workers of the call, which is the current workforce.
        """
        found = None
        for kept in list(self._kept):
            if _content_of(kept.spec) == _content_of(wanted) and kept.placement == placement:
                if found is None and kept.ledger.next_index == first_index:
                    found = kept
                    self._kept.remove(kept)
            elif kept.spec.root_seed == wanted.root_seed:  # the sequence continues in another way
                self._kept.remove(kept)
                self._supersede(kept)
        if found is None:
            spec = dataclasses.replace(wanted, work_id=next(self._ids))
            found = OpenSequence(spec, placement, Ledger(first_index), workforce)
        return found

    def keep(self, sequence: OpenSequence, workforce: Workforce) -> None:
        """Take back the sequence of a completed call, for the next one, which has this workforce."""
        # No other call continues exact episodes, or episodes of removed workers.
        if isinstance(sequence.placement, PerWorker) or not sequence.extend(workforce):
            self._supersede(sequence)
        else:
            self._keep(sequence)

    def keep_prefetched(self, sequence: OpenSequence, account: Account, *, has_failed: bool, drop: bool) -> None:
        """Take back the sequence of a prefetch for the next call.

        Args:
            sequence: the sequence.
            account: what became of the steps that were prefetched.
            has_failed: whether the prefetch failed: the next call has to find out itself.
            drop: whether no call can use it any more.
        """
        self._prefetched.append(account)
        if has_failed:
            self.cancel(sequence)
        elif drop:
            self._supersede(sequence)
        else:
            self._keep(sequence)

    def cancel(self, sequence: OpenSequence, num_discarded_steps: int = 0) -> None:
        """Take back the sequence of a call that ended early: its workers stop and forget it.

        Args:
            sequence: the sequence.
            num_discarded_steps: number of its steps that were discarded already, and that no account reports.
        """
        self._dropped.num_cancelled += sequence.num_held_steps + num_discarded_steps
        self._close(sequence, cancelled=True)

    def extend(self, workforce: Workforce) -> None:
        """Let workers be used for kept sequences that were added behind the present ones."""
        for kept in self._kept:
            kept.extend(workforce)

    def drop_kept(self) -> None:
        """Close all kept sequences."""
        while self._kept:
            self._supersede(self._kept.pop())

    def drop_outdated(self, policy_version: int, env_version: int) -> None:
        """Close the kept sequences of other versions."""
        for kept in list(self._kept):
            if (kept.spec.policy_version, kept.spec.env_version) != (policy_version, env_version):
                self._kept.remove(kept)
                self._supersede(kept)

    def report_dropped(self, account: Account) -> None:
        """Add what was dropped since the last report to an account."""
        self._dropped.report(account)
        while self._prefetched:
            account.add_prefetched(self._prefetched.pop())

    def _keep(self, sequence: OpenSequence) -> None:
        self._kept.append(sequence)
        while len(self._kept) > self.max_kept:
            self._supersede(self._kept.pop(0))

    def _supersede(self, sequence: OpenSequence) -> None:
        self._dropped.num_superseded += sequence.num_held_steps
        self._close(sequence, cancelled=False)

    def _close(self, sequence: OpenSequence, *, cancelled: bool) -> None:
        # The calls are made here, so that workers hear of it before anything later.
        closing = sequence.close()
        reports = [in_flight.report for queue in sequence.in_flight for in_flight in queue]
        in_background(self._dropped.count_coming(closing, reports, cancelled=cancelled))
