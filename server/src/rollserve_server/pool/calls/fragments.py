"""One call that samples fragments: each worker makes the same number of steps of its rows, and is delivered in turn."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from rollserve import Reproducibility
from rollserve_server.errors import DomainError, EnvFailedError, NotReadyError, WorkerLostError
from rollserve_server.pool.accounts.account import ENVIRONMENT_FAILED, Account, WorkerAccount
from rollserve_server.pool.accounts.env_failures import FailedEpisode
from rollserve_server.pool.calls.driver import (
    ORDERS_IN_FLIGHT,
    CallDriver,
    CallSettings,
    Delivery,
    ignore_answer,
    put_to_work,
)
from rollserve_server.pool.sequences.row_sequences import WorkLocation
from rollserve_server.pool.state.sampler_state import Moved
from rollserve_server.sampling import FragmentAssignment, FragmentOrder, RowSequenceSpec, Worker

if TYPE_CHECKING:
    from rollserve_server.pool.backends.backend import RemoteBuffer, WorkerHandle
    from rollserve_server.pool.interface.fragments import Fragments
    from rollserve_server.pool.sequences.row_sequences import RowSequence
    from rollserve_server.pool.state.checkpoints import Checkpoint
    from rollserve_server.pool.workers.workforce import Workforce
    from rollserve_server.sampling import FragmentReport, Message, RowProgress, RowState

__all__ = ["FragmentCall"]

_STOP_SECONDS = 1.0
"""How long a worker that is to stop may take to answer, if nothing has come from it yet."""


class FragmentCall(CallDriver):
    """Runs one call, which has its sequence for itself meanwhile.

    A worker that is lost on the way costs time only: its rows are brought to where they stood, and make the same steps
    again. If a part of the workers is enough, the others stop as soon as those have made all their steps.

    Attributes:
        sequence: what its rows run.
        start: where they stand at its beginning.
    """

    def __init__(
        self,
        target: Fragments,
        sequence: RowSequence,
        start: Checkpoint,
        policy_version: int,
        ids: Iterator[int],
        workforce: Workforce,
        settings: CallSettings,
        reproducibility: Reproducibility,
    ) -> None:
        account = Account(
            seed=sequence.seed,
            first_episode_index=0,
            policy_version=policy_version,
            env_version=sequence.kind.env_version,
            workers=[WorkerAccount() for _ in workforce],
            row_step_count=start.clock,
        )
        is_whole = target.fraction_of_workers >= 1
        # What workers that stop have made by then is up to chance.
        super().__init__(workforce, settings, account, reproducibility if is_whole else Reproducibility.WORKER)
        self._tells_actions = reproducibility is not Reproducibility.WORKER
        self.sequence = sequence
        self.start = start
        self._ids = ids
        self._call_id = next(ids)
        self._num_row_steps = target.num_steps // start.stride
        self._parts = [
            _WorkerState(worker, self._num_row_steps, len(rows)) for worker, rows in enumerate(start.workers)
        ]
        # How many workers have to make all their steps; and whether they have, so that the others stop.
        self._num_enough = math.ceil(target.fraction_of_workers * len(workforce) - 1e-9)
        self._is_ending, self._overdue_at = False, math.inf
        self._turn = 0
        left = target.num_skipped_steps
        for part in self._parts:
            part.num_skipped = part.num_written = part.num_done = min(left, part.num_steps)
            left -= part.num_done

    def reached(self) -> Checkpoint:
        """Where the rows stand after a call that is complete."""
        return self.start.after(self._num_row_steps, self._progress())

    def moved(self, *, is_known: bool) -> Moved:
        """The same for a journal, which may know where they stood."""
        sequence, start = self.sequence, self.start.clock if is_known else self.start
        return Moved(sequence.number, sequence.seed, sequence.kind, start, self._num_row_steps, self._progress())

    def locations(self) -> list[WorkLocation | None]:
        """Which workers have the rows where they stand after a call that is complete."""
        return [None if part.is_left else part.location for part in self._parts]

    def left(self) -> tuple[list[WorkLocation], list[asyncio.Future[FragmentReport]]]:
        """Where rows are that did not stop in time, and stand elsewhere; and what those have not answered."""
        left = [part for part in self._parts if part.is_left]
        locations = [part.location for part in left if part.location is not None]
        return locations, [in_flight.report for part in left for in_flight in part.in_flight]

    def open_locations(self) -> list[WorkLocation]:
        """Where rows are, wherever they stand."""
        return [part.location for part in self._parts if part.location is not None]

    def coming(self) -> list[asyncio.Future[FragmentReport]]:
        """What has been asked of workers and not been answered."""
        return [in_flight.report for part in self._parts for in_flight in part.in_flight]

    def _progress(self) -> list[Sequence[RowProgress]]:
        return [part.progress for part in self._parts if part.progress is not None]

    def _begin(self) -> None:
        for part, location in zip(self._parts, self.sequence.locations, strict=True):
            slot = self._workforce[part.worker]
            if location is not None and slot.healthy and slot.handle is location.handle:
                part.location = location

    def _is_complete(self) -> bool:
        while self._turn < len(self._parts):
            part = self._parts[self._turn]
            self._check_restored(part)
            if self._is_ending:
                self._leave_if_overdue(part)
            if part.written or part.progress is None:
                return False
            self._turn += 1
            self._notify()  # the next worker may write more now
        return True

    def _end(self) -> None:
        account = self.account
        # What was made and is not delivered was made again.
        account.num_lost_steps = account.num_simulated_steps - account.num_steps - account.num_discarded_steps
        account.num_broken_off_episodes = sum(part.num_broken_off for part in self._parts)
        for part, share in zip(self._parts, account.workers, strict=True):
            share.num_missing_steps = (self._num_row_steps - part.num_row_steps) * part.num_rows

    async def _drive(self, worker: int) -> None:
        part = self._parts[worker]
        slot = self._workforce[worker]
        while not part.is_left:
            if part.progress is not None and not slot.healthy:  # nothing of it is missing
                self._forget_rows(part)
                await self._wait()
                continue
            try:
                handle = await self._workforce.ready(worker)
            except WorkerLostError:
                part.is_missing = True
                if not self._can_wait_for(part):
                    raise
                continue
            part.is_missing = False
            if part.location is not None and part.location.handle is not handle:
                self._lose(part, WorkerLostError(f"worker {worker} is lost", worker))
            try:
                await self._drive_handle(part, handle)
            except WorkerLostError as error:
                self._workforce.lose(worker, handle, error)
                if part.location is not None and part.location.handle is handle:  # else that is known
                    self._lose(part, error)

    def _can_wait_for(self, part: _WorkerState) -> bool:
        """Whether the call may go on although a worker is lost and there is none in its place: others are enough."""
        num_there = sum(not each.is_missing for each in self._parts)
        return num_there >= self._num_enough and self._can_leave(part)

    async def _drive_handle(self, part: _WorkerState, handle: WorkerHandle) -> None:
        """Keeps a worker at work until it is lost, or left behind."""
        slot, stuck = self._workforce[part.worker], False
        while part.in_flight or (slot.healthy and slot.handle is handle):
            while len(part.in_flight) < ORDERS_IN_FLIGHT and (order := self._next_order(part, handle, stuck)):
                part.in_flight.append(_InFlight(order, *put_to_work(handle, order)))
            if not part.in_flight:
                await self._wait()
                continue
            # If the call ends meanwhile, somebody else takes the answer.
            _, coming, payload = part.in_flight[0]
            report = await asyncio.shield(coming)
            if part.is_left or not part.in_flight:  # it was found lost when what it had written was fetched
                return
            part.in_flight.popleft()
            self._take(part, report, payload)
            stuck = part.location is not None and not (report.num_simulated_steps or report.messages or report.rows)
            if not stuck:
                self._notify()

    def _next_order(self, part: _WorkerState, handle: WorkerHandle, stuck: bool) -> FragmentOrder | None:
        """What a worker is to do next, or None if there is nothing now.

        Args:
            part: the worker's part.
            handle: the worker.
            stuck: whether it had nothing to do with its last order, because it holds as much as it may.
        """
        if part.progress is not None:
            return None
        samples = part.num_made < part.num_steps
        room = self._room(part)
        # The first answer often brings it all.
        if part.in_flight and not (samples and part.has_answered):
            return None
        if room <= 0 and (stuck or not samples):
            return None
        states = None
        if part.location is None:
            part.location = WorkLocation(handle, next(self._ids))
            states = self._states(part)
        kind = self.sequence.kind
        sequence = RowSequenceSpec(part.location.work_id, self.sequence.seed, *kind, self.start.stride)
        seconds = self._slice_seconds(has_answered=part.has_answered) if samples else 0.0
        enough = part.num_needed_row_steps if self._is_ending else None
        return FragmentOrder(sequence, self._part(part), states, max(room, 0), seconds, enough)

    def _part(self, part: _WorkerState) -> FragmentAssignment:
        return FragmentAssignment(
            call_id=self._call_id,
            policy_version=self.account.policy_version,
            exploration=self._settings.exploration,
            num_row_steps=part.num_row_steps,
            num_skipped_steps=part.num_skipped,
            max_message_bytes=self._settings.max_message_bytes,
            tell_actions=self._tells_actions,
            columns=self._settings.columns,
        )

    def _states(self, part: _WorkerState) -> Sequence[RowState]:
        """What the rows of a worker are to be made from, after any that it had are gone."""
        states, part.num_unknown = self.start.states(part.worker)
        part.num_skipped, part.num_broken_off = part.num_written, part.num_unknown
        self._notify()
        return states

    def _room(self, part: _WorkerState) -> int:
        """How many bytes a worker may write now: half of the window if it is its turn, else a share of the rest."""
        share = self._settings.window_bytes // 2
        if part.worker != self._turn:
            share //= len(self._parts)
        return max(share, 1) - part.num_waiting_bytes - sum(order.write_bytes for order, *_ in part.in_flight)

    def _take(self, part: _WorkerState, report: FragmentReport, payload: RemoteBuffer) -> None:
        """Takes in what a worker did."""
        share = self.account.workers[part.worker]
        share.sampling_seconds += report.sampling_seconds
        share.encoding_seconds += report.encoding_seconds
        share.num_simulated_steps += report.num_simulated_steps
        self.account.dropped_infos.update(report.dropped_infos)
        for env_failure in report.env_failures:
            self.account.take_env_failure(part.worker, env_failure)
        if report.failure is not None:
            self._take_failure(part, report, report.failure)
            return
        part.has_answered = True
        part.num_made += report.num_simulated_steps - report.num_restoring_steps
        part.num_broken_off = part.num_unknown + report.num_broken_off
        part.num_row_steps = report.num_row_steps
        if report.messages:
            part.num_needed_row_steps = max(part.num_needed_row_steps, part.num_made // part.num_rows)
            assert part.location is not None  # noqa: S101  # it has just answered
            part.written.append(_PendingDelivery(report.messages, payload, part.location.handle))
            part.num_written += sum(message.num_steps for message in report.messages)
        if report.rows is not None:
            part.progress = report.rows
        if self._num_enough < len(self._parts) and not self._is_ending:
            self._end_if_enough()

    def _end_if_enough(self) -> None:
        """Has the other workers stop once enough have made all their steps."""
        unfinished = [part for part in self._parts if part.num_made < part.num_steps and part.progress is None]
        if len(self._parts) - len(unfinished) < self._num_enough:
            return
        self._is_ending = True
        for part in self._parts:
            if part not in unfinished:
                part.num_needed_row_steps = self._num_row_steps  # also if it is lost
            elif part.location is not None and part.in_flight:
                part.location.handle.stop(self._call_id)
        loop = asyncio.get_running_loop()
        self._overdue_at = loop.time() + _STOP_SECONDS
        loop.call_at(self._overdue_at + 0.01, self._notify)
        self._notify()

    def _leave_if_overdue(self, part: _WorkerState) -> None:
        """Goes on without a worker that does not stop, if nothing has come from it and its rows can be made again."""
        if part.progress is not None or asyncio.get_running_loop().time() < self._overdue_at:
            return
        if self._can_leave(part):
            part.progress, part.num_row_steps, part.is_left = [], 0, True

    def _can_leave(self, part: _WorkerState) -> bool:
        """Whether nothing has come from a worker, and its rows can be made again as they were."""
        has_stopped = part.num_row_steps < self._num_row_steps
        is_restorable = self._tells_actions and all(point.is_restorable for point in self.start.workers[part.worker])
        return is_restorable and not (has_stopped or part.num_needed_row_steps)

    def _take_failure(self, part: _WorkerState, report: FragmentReport, failure: DomainError) -> None:
        """Has rows made anew that an environment's error has left behind. Raises all other failures."""
        location = part.location
        if report.is_stranded and location is not None and part.num_strandings < self._settings.env_retries:
            part.num_strandings += 1
            part.failure = failure
            self._close_rows(part, location)
            self._restart(part, ENVIRONMENT_FAILED)
            return
        final = [env_failure for env_failure in report.env_failures if env_failure.is_final]
        if isinstance(failure, EnvFailedError) and final:
            raise EnvFailedError(FailedEpisode.of(part.worker, final[-1]).final_text)
        raise failure

    def _check_restored(self, part: _WorkerState) -> None:
        """Raises an error if rows begin other episodes although a part of what they made before is delivered."""
        if not (part.num_skipped and part.num_broken_off):
            return
        rows = f"{part.num_broken_off} rows of worker {part.worker}"
        text = f"{rows} cannot be brought to where they stood, but a part of what they made from there is delivered"
        if part.num_losses:
            raise WorkerLostError(text, part.worker)
        if part.failure is not None:
            raise EnvFailedError(f"{part.failure.text}; {text}")
        raise NotReadyError(text, reason="ROW_STEP_COUNT", field="fragments.row_step_count")

    def _lose(self, part: _WorkerState, error: WorkerLostError) -> None:
        """Takes in that a worker is gone with its rows, and what it had not written."""
        self._forget_rows(part)
        if part.progress is None:
            self._restart_lost(part, error)

    def _forget_rows(self, part: _WorkerState) -> None:
        """Takes in that nothing more comes of a worker's rows."""
        part.in_flight.clear()
        part.location = None

    def _close_rows(self, part: _WorkerState, location: WorkLocation) -> None:
        """Has a worker, which is there, end what it does with its rows."""
        self._forget_rows(part)
        location.handle.stop(location.work_id)
        closing = asyncio.ensure_future(location.handle.call(Worker.close_work, location.work_id))
        closing.add_done_callback(ignore_answer)

    def _restart(self, part: _WorkerState, reason: str) -> None:
        """Has a part made again, but for what is written."""
        part.progress, part.num_made, part.has_answered = None, 0, False
        part.num_row_steps = self._num_row_steps
        self.account.count_retried(reason, len(self.start.workers[part.worker]))
        self._notify()

    def _restart_lost(self, part: _WorkerState, error: WorkerLostError) -> None:
        """Has a part of a lost worker made again. Raises the error if that has happened too often."""
        part.num_losses += not self._workforce[part.worker].lost_in_broadcast
        self._restart(part, error.reason.lower())
        if part.num_losses > self._settings.unit_retries:
            text = f"{error.text}; {part.num_losses - 1} workers were lost with the same rows before"
            raise error.again(text)

    async def _next_delivery(self) -> Delivery | None:
        part = self._parts[self._turn]
        return await self._fetch(part) if part.written else None

    async def _fetch(self, part: _WorkerState) -> Delivery | None:
        messages, payload, handle = part.written[0]
        try:
            buffer = await payload.get()
        except WorkerLostError as error:
            # Its machine is gone, with all that it had written.
            part.written.clear()
            part.num_written = part.num_done
            if part.location is not None and part.location.handle is handle:
                self._workforce.lose(part.worker, handle, error)
                self._lose(part, error)
            elif part.location is not None:  # another is in its place, and leaves out what is gone
                self._close_rows(part, part.location)
                if part.progress is None:
                    self._restart(part, error.reason.lower())
            if part.progress is not None:
                self._restart_lost(part, error)
            return None
        part.written.popleft()
        part.num_done += sum(message.num_steps for message in messages)
        return self._deliver(part.worker, messages, buffer)


class _InFlight(NamedTuple):
    """An order, and what is to come of it."""

    order: FragmentOrder
    report: asyncio.Future[FragmentReport]
    payload: RemoteBuffer


class _PendingDelivery(NamedTuple):
    """Messages, the buffer that they stand in, which is to be fetched, and the worker that wrote them."""

    messages: Sequence[Message]
    payload: RemoteBuffer
    handle: WorkerHandle


@dataclass(eq=False)
class _WorkerState:
    """A worker's part in the call.

    Attributes:
        worker: which one.
        num_row_steps: how many steps each of its rows makes.
        num_rows: how many rows it has.
        location: where the rows are; None if they have to be made.
        in_flight: orders that have not been answered.
        has_answered: whether the worker has answered, since the rows are in their place.
        num_made: steps made since then, but for those that brought rows to where they stood.
        num_skipped: steps at the beginning that are not written this time, because they are written or delivered.
        num_written: steps that are written, or delivered, or not wanted.
        num_done: of these, the ones that are not waiting.
        written: what is waiting to be delivered.
        progress: where the rows stand, once all is made and written.
        num_unknown: rows that begin their next episodes, because it is not known how to bring them to where they stood.
        num_broken_off: all rows that could not be brought there.
        num_losses: how often it was lost.
        num_strandings: how often it was made anew because of an environment's error.
        failure: the last such error.
        num_needed_row_steps: how many steps of each row it has to make in any case: what is written goes up to there.
        is_missing: whether its worker is lost and there is none in its place for now.
        is_left: whether nobody waits for it any more; its rows stand where they did, as far as the sequence goes.
    """

    worker: int
    num_row_steps: int
    num_rows: int
    location: WorkLocation | None = None
    in_flight: deque[_InFlight] = field(default_factory=deque)
    has_answered: bool = False
    num_made: int = 0
    num_skipped: int = 0
    num_written: int = 0
    num_done: int = 0
    written: deque[_PendingDelivery] = field(default_factory=deque)
    progress: Sequence[RowProgress] | None = None
    num_unknown: int = 0
    num_broken_off: int = 0
    num_losses: int = 0
    num_strandings: int = 0
    failure: DomainError | None = None
    num_needed_row_steps: int = 0
    is_left: bool = False
    is_missing: bool = False

    @property
    def num_steps(self) -> int:
        """How many steps its rows make."""
        return self.num_row_steps * self.num_rows

    @property
    def num_waiting_bytes(self) -> int:
        """How many bytes are waiting to be delivered."""
        return sum(message.size for written in self.written for message in written.messages)
