"""One call that samples fragments: each worker makes the same number of steps of its rows, and is delivered in turn."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from rollserve import Reason, Reproducibility
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
from rollserve_server.pool.state.sampler_state import RowsMoved
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
        self._worker_states = [
            _WorkerState(worker, self._num_row_steps, len(rows)) for worker, rows in enumerate(start.workers)
        ]
        # How many workers have to make all their steps; and whether they have, so that the others stop.
        self._num_enough = math.ceil(target.fraction_of_workers * len(workforce) - 1e-9)
        self._is_ending, self._overdue_at = False, math.inf
        self._next_worker = 0
        left = target.num_skipped_steps
        for state in self._worker_states:
            state.num_skipped = state.num_written = state.num_done = min(left, state.num_steps)
            left -= state.num_done

    def reached(self) -> Checkpoint:
        """Where the rows stand after a call that is complete."""
        return self.start.after(self._num_row_steps, self._progress())

    def moved(self, *, is_known: bool) -> RowsMoved:
        """The same for a journal, which may know where they stood."""
        sequence, start = self.sequence, self.start.clock if is_known else self.start
        return RowsMoved(sequence.number, sequence.seed, sequence.kind, start, self._num_row_steps, self._progress())

    def locations(self) -> list[WorkLocation | None]:
        """Which workers have the rows where they stand after a call that is complete."""
        return [None if state.is_left else state.location for state in self._worker_states]

    def left(self) -> tuple[list[WorkLocation], list[asyncio.Future[FragmentReport]]]:
        """Where rows are that did not stop in time, and stand elsewhere; and what those have not answered."""
        left = [state for state in self._worker_states if state.is_left]
        locations = [state.location for state in left if state.location is not None]
        return locations, [in_flight.report for state in left for in_flight in state.in_flight]

    def open_locations(self) -> list[WorkLocation]:
        """Where rows are, wherever they stand."""
        return [state.location for state in self._worker_states if state.location is not None]

    def coming(self) -> list[asyncio.Future[FragmentReport]]:
        """What has been asked of workers and not been answered."""
        return [in_flight.report for state in self._worker_states for in_flight in state.in_flight]

    def _progress(self) -> list[Sequence[RowProgress]]:
        return [state.progress for state in self._worker_states if state.progress is not None]

    def _begin(self) -> None:
        for state, location in zip(self._worker_states, self.sequence.locations, strict=True):
            slot = self._workforce[state.worker]
            if location is not None and slot.healthy and slot.handle is location.handle:
                state.location = location

    def _is_complete(self) -> bool:
        while self._next_worker < len(self._worker_states):
            state = self._worker_states[self._next_worker]
            self._check_restored(state)
            if self._is_ending:
                self._leave_if_overdue(state)
            if state.written or state.progress is None:
                return False
            self._next_worker += 1
            self._notify()  # the next worker may write more now
        return True

    def _end(self) -> None:
        account = self.account
        # What was made and is not delivered was made again.
        account.num_lost_steps = account.num_simulated_steps - account.num_steps - account.num_discarded_steps
        account.num_broken_off_episodes = sum(state.num_broken_off for state in self._worker_states)
        for state, share in zip(self._worker_states, account.workers, strict=True):
            share.num_missing_steps = (self._num_row_steps - state.num_row_steps) * state.num_rows

    async def _drive(self, worker: int) -> None:
        state = self._worker_states[worker]
        slot = self._workforce[worker]
        while not state.is_left:
            if state.progress is not None and not slot.healthy:  # nothing of it is missing
                self._forget_rows(state)
                await self._wait()
                continue
            try:
                handle = await self._workforce.ready(worker)
            except WorkerLostError:
                state.is_missing = True
                if not self._can_wait_for(state):
                    raise
                continue
            state.is_missing = False
            if state.location is not None and state.location.handle is not handle:
                self._lose(state, WorkerLostError(f"worker {worker} is lost", worker))
            try:
                await self._drive_handle(state, handle)
            except WorkerLostError as error:
                self._workforce.lose(worker, handle, error)
                if state.location is not None and state.location.handle is handle:  # else that is known
                    self._lose(state, error)

    def _can_wait_for(self, state: _WorkerState) -> bool:
        """Whether the call may go on although a worker is lost and there is none in its place: others are enough."""
        num_there = sum(not each.is_missing for each in self._worker_states)
        return num_there >= self._num_enough and self._can_leave(state)

    async def _drive_handle(self, state: _WorkerState, handle: WorkerHandle) -> None:
        """Keeps a worker at work until it is lost, or left behind."""
        slot, stuck = self._workforce[state.worker], False
        while state.in_flight or (slot.healthy and slot.handle is handle):
            while len(state.in_flight) < ORDERS_IN_FLIGHT and (order := self._next_order(state, handle, stuck)):
                state.in_flight.append(_InFlight(order, *put_to_work(handle, order)))
            if not state.in_flight:
                await self._wait()
                continue
            # If the call ends meanwhile, somebody else takes the answer.
            _, coming, payload = state.in_flight[0]
            report = await asyncio.shield(coming)
            if state.is_left or not state.in_flight:  # it was found lost when what it had written was fetched
                return
            state.in_flight.popleft()
            self._take(state, report, payload)
            stuck = state.location is not None and not (report.num_simulated_steps or report.messages or report.rows)
            if not stuck:
                self._notify()

    def _next_order(self, state: _WorkerState, handle: WorkerHandle, stuck: bool) -> FragmentOrder | None:
        """What a worker is to do next, or None if there is nothing now.

        Args:
            state: the worker's part.
            handle: the worker.
            stuck: whether it had nothing to do with its last order, because it holds as much as it may.
        """
        if state.progress is not None:
            return None
        samples = state.num_made < state.num_steps
        room = self._room(state)
        # The first answer often brings it all.
        if state.in_flight and not (samples and state.has_answered):
            return None
        if room <= 0 and (stuck or not samples):
            return None
        row_states = None
        if state.location is None:
            state.location = WorkLocation(handle, next(self._ids))
            row_states = self._row_states(state)
        kind = self.sequence.kind
        sequence = RowSequenceSpec(state.location.work_id, self.sequence.seed, *kind, self.start.stride)
        seconds = self._slice_seconds(has_answered=state.has_answered) if samples else 0.0
        enough = state.num_needed_row_steps if self._is_ending else None
        return FragmentOrder(sequence, self._assignment(state), row_states, max(room, 0), seconds, enough)

    def _assignment(self, state: _WorkerState) -> FragmentAssignment:
        return FragmentAssignment(
            call_id=self._call_id,
            policy_version=self.account.policy_version,
            exploration=self._settings.exploration,
            num_row_steps=state.num_row_steps,
            num_skipped_steps=state.num_skipped,
            max_message_bytes=self._settings.max_message_bytes,
            tell_actions=self._tells_actions,
            columns=self._settings.columns,
        )

    def _row_states(self, state: _WorkerState) -> Sequence[RowState]:
        """What the rows of a worker are to be made from, after any that it had are gone."""
        row_states, state.num_unknown = self.start.states(state.worker)
        state.num_skipped, state.num_broken_off = state.num_written, state.num_unknown
        self._notify()
        return row_states

    def _room(self, state: _WorkerState) -> int:
        """How many bytes a worker may write now: half of the window if it is its turn, else a share of the rest."""
        share = self._settings.window_bytes // 2
        if state.worker != self._next_worker:
            share //= len(self._worker_states)
        return max(share, 1) - state.num_waiting_bytes - sum(order.write_bytes for order, *_ in state.in_flight)

    def _take(self, state: _WorkerState, report: FragmentReport, payload: RemoteBuffer) -> None:
        """Takes in what a worker did."""
        share = self.account.workers[state.worker]
        share.sampling_seconds += report.sampling_seconds
        share.encoding_seconds += report.encoding_seconds
        share.num_simulated_steps += report.num_simulated_steps
        self.account.dropped_infos.update(report.dropped_infos)
        for env_failure in report.env_failures:
            self.account.take_env_failure(state.worker, env_failure)
        if report.failure is not None:
            self._take_failure(state, report, report.failure)
            return
        state.has_answered = True
        state.num_made += report.num_simulated_steps - report.num_restoring_steps
        state.num_broken_off = state.num_unknown + report.num_broken_off
        state.num_row_steps = report.num_row_steps
        if report.messages:
            state.num_needed_row_steps = max(state.num_needed_row_steps, state.num_made // state.num_rows)
            assert state.location is not None  # noqa: S101  # it has just answered
            state.written.append(_PendingDelivery(report.messages, payload, state.location.handle))
            state.num_written += sum(message.num_steps for message in report.messages)
        if report.rows is not None:
            state.progress = report.rows
        if self._num_enough < len(self._worker_states) and not self._is_ending:
            self._end_if_enough()

    def _end_if_enough(self) -> None:
        """Has the other workers stop once enough have made all their steps."""
        unfinished = [
            state for state in self._worker_states if state.num_made < state.num_steps and state.progress is None
        ]
        if len(self._worker_states) - len(unfinished) < self._num_enough:
            return
        self._is_ending = True
        for state in self._worker_states:
            if state not in unfinished:
                state.num_needed_row_steps = self._num_row_steps  # also if it is lost
            elif state.location is not None and state.in_flight:
                state.location.handle.stop(self._call_id)
        loop = asyncio.get_running_loop()
        self._overdue_at = loop.time() + _STOP_SECONDS
        loop.call_at(self._overdue_at + 0.01, self._notify)
        self._notify()

    def _leave_if_overdue(self, state: _WorkerState) -> None:
        """Goes on without a worker that does not stop, if nothing has come from it and its rows can be made again."""
        if state.progress is not None or asyncio.get_running_loop().time() < self._overdue_at:
            return
        if self._can_leave(state):
            state.progress, state.num_row_steps, state.is_left = [], 0, True

    def _can_leave(self, state: _WorkerState) -> bool:
        """Whether nothing has come from a worker, and its rows can be made again as they were."""
        has_stopped = state.num_row_steps < self._num_row_steps
        is_restorable = self._tells_actions and all(point.is_restorable for point in self.start.workers[state.worker])
        return is_restorable and not (has_stopped or state.num_needed_row_steps)

    def _take_failure(self, state: _WorkerState, report: FragmentReport, failure: DomainError) -> None:
        """Has rows made anew that an environment's error has left behind. Raises all other failures."""
        location = state.location
        if report.is_stranded and location is not None and state.num_strandings < self._settings.env_retries:
            state.num_strandings += 1
            state.failure = failure
            self._close_rows(state, location)
            self._restart(state, ENVIRONMENT_FAILED)
            return
        final = [env_failure for env_failure in report.env_failures if env_failure.is_final]
        if isinstance(failure, EnvFailedError) and final:
            raise EnvFailedError(FailedEpisode.of(state.worker, final[-1]).final_text)
        raise failure

    def _check_restored(self, state: _WorkerState) -> None:
        """Raises an error if rows begin other episodes although a part of what they made before is delivered."""
        if not (state.num_skipped and state.num_broken_off):
            return
        rows = f"{state.num_broken_off} rows of worker {state.worker}"
        text = f"{rows} cannot be brought to where they stood, but a part of what they made from there is delivered"
        if state.num_losses:
            raise WorkerLostError(text, state.worker)
        if state.failure is not None:
            raise EnvFailedError(f"{state.failure.text}; {text}")
        raise NotReadyError(text, reason=Reason.ROW_STEP_COUNT, field="fragments.row_step_count")

    def _lose(self, state: _WorkerState, error: WorkerLostError) -> None:
        """Takes in that a worker is gone with its rows, and what it had not written."""
        self._forget_rows(state)
        if state.progress is None:
            self._restart_lost(state, error)

    def _forget_rows(self, state: _WorkerState) -> None:
        """Takes in that nothing more comes of a worker's rows."""
        state.in_flight.clear()
        state.location = None

    def _close_rows(self, state: _WorkerState, location: WorkLocation) -> None:
        """Has a worker, which is there, end what it does with its rows."""
        self._forget_rows(state)
        location.handle.stop(location.work_id)
        closing = asyncio.ensure_future(location.handle.call(Worker.close_work, location.work_id))
        closing.add_done_callback(ignore_answer)

    def _restart(self, state: _WorkerState, reason: str) -> None:
        """Has a part made again, but for what is written."""
        state.progress, state.num_made, state.has_answered = None, 0, False
        state.num_row_steps = self._num_row_steps
        self.account.count_retried(reason, len(self.start.workers[state.worker]))
        self._notify()

    def _restart_lost(self, state: _WorkerState, error: WorkerLostError) -> None:
        """Has a part of a lost worker made again. Raises the error if that has happened too often."""
        state.num_losses += not self._workforce[state.worker].lost_in_broadcast
        self._restart(state, error.reason.lower())
        if state.num_losses > self._settings.unit_retries:
            text = f"{error.text}; {state.num_losses - 1} workers were lost with the same rows before"
            raise error.again(text)

    async def _next_delivery(self) -> Delivery | None:
        state = self._worker_states[self._next_worker]
        return await self._fetch(state) if state.written else None

    async def _fetch(self, state: _WorkerState) -> Delivery | None:
        messages, payload, handle = state.written[0]
        try:
            buffer = await payload.get()
        except WorkerLostError as error:
            # Its machine is gone, with all that it had written.
            state.written.clear()
            state.num_written = state.num_done
            if state.location is not None and state.location.handle is handle:
                self._workforce.lose(state.worker, handle, error)
                self._lose(state, error)
            elif state.location is not None:  # another is in its place, and leaves out what is gone
                self._close_rows(state, state.location)
                if state.progress is None:
                    self._restart(state, error.reason.lower())
            if state.progress is not None:
                self._restart_lost(state, error)
            return None
        state.written.popleft()
        state.num_done += sum(message.num_steps for message in messages)
        return self._deliver(state.worker, messages, buffer)


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
