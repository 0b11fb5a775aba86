"""Fragment calls: each worker makes the same number of steps of its rows, and is delivered in its turn."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from rollserve_server.errors import DomainError, EnvFailedError, NotReadyError, WorkerLostError
from rollserve_server.pool.accounts import ENVIRONMENT_FAILED, Account, FailedEpisode, WorkerAccount
from rollserve_server.pool.calls.call import Call
from rollserve_server.pool.sequences.open_work import WorkLocation
from rollserve_server.pool.sequences.row_sequences import RowsReached
from rollserve_server.sampling import FragmentAssignment, FragmentOrder, RowSequenceSpec
from rollserve_wire.environments import Reproducibility
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from rollserve_server.pool.backends.backend import RemoteBuffer, WorkerHandle
    from rollserve_server.pool.parts import PoolParts
    from rollserve_server.pool.requests import Fragments, SampleRequest
    from rollserve_server.pool.results import Beginning, Delivery
    from rollserve_server.pool.sequences.open_work import InFlight
    from rollserve_server.pool.sequences.row_sequences import RowSequence
    from rollserve_server.pool.workers.slots import Workforce
    from rollserve_server.sampling import FragmentReport, Message, RowProgress, RowState


__all__ = ["FragmentCall", "FragmentWorker"]

_STOP_SECONDS = 1.0
"""How long a worker that is to stop may take to answer, if it has written nothing yet."""


class FragmentCall(Call["FragmentOrder", "FragmentReport"]):
    """A fragment call, which has its row sequence for itself.

    A lost worker costs time only: its rows are brought back to where they stood, and make the same steps again. If a
    part of the workers is enough, the others stop as soon as that part has made all its steps, and each of them its
    least share.

    Attributes:
        sequence: what its rows run.
        is_patient: whether the first answer of a worker may come as late as the others.
    """

    def __init__(
        self,
        parts: PoolParts,
        request: SampleRequest,
        target: Fragments,
        sequence: RowSequence,
        policy_version: int,
        workforce: Workforce,
        reproducibility: Reproducibility,
    ) -> None:
        account = Account(
            seed=sequence.seed,
            first_episode_index=0,
            policy_version=policy_version,
            env_version=sequence.kind.env_version,
            workers=[WorkerAccount() for _ in workforce.slots],
            row_step_count=sequence.start.clock,
        )
        is_whole = target.fraction_of_workers >= 1
        # How far workers are that are stopped is up to chance.
        reached = reproducibility if is_whole else Reproducibility.WORKER
        start = sequence.start  # where the rows stand at the beginning
        self._num_row_steps = target.num_steps // start.stride
        self._workers = [
            FragmentWorker(worker, self._num_row_steps, len(rows)) for worker, rows in enumerate(start.workers)
        ]
        in_flight = [state.in_flight for state in self._workers]
        super().__init__(parts, request, workforce, account, reached, in_flight)
        self._request: SampleRequest
        self._policy_version = policy_version
        self._reports_actions = reproducibility is not Reproducibility.WORKER
        self.sequence = sequence
        self.is_patient = False
        self._start = start
        self._call_id = next(parts.ids)
        # How many workers have to make all their steps; and whether they have, so that the others stop.
        self._num_enough = math.ceil(target.fraction_of_workers * len(workforce) - 1e-9)
        self._is_ending, self._overdue_at = False, math.inf
        # Whether all workers are to stop at the same step; and that step, once it is known.
        self._is_cutting = False
        self._cut_at: int | None = None
        self._next_worker = 0  # whose messages are delivered next
        left = target.num_skipped_steps
        for state in self._workers:
            left = state.skip(left)
            state.num_needed_row_steps = math.ceil(target.fraction_of_samples * self._num_row_steps - 1e-9)
            location, slot = sequence.locations[state.index], self._slots[state.index]
            if location is not None and slot.healthy and slot.handle is location.handle:
                state.location = location

    def reached(self) -> RowsReached:
        """Return where the call, once complete, has brought its rows."""
        abandoned = [state for state in self._workers if state.is_abandoned]
        return RowsReached(
            self._num_row_steps,
            [state.progress for state in self._workers if state.progress is not None],
            [None if state.is_abandoned else state.location for state in self._workers],
            [state.location for state in abandoned if state.location is not None],
            [in_flight.report for state in abandoned for in_flight in state.in_flight],
        )

    @property
    def num_row_steps(self) -> int:
        """Number of steps that each row makes in the call."""
        return self._num_row_steps

    def cut(self) -> None:
        """Have all rows stop at the same step, as soon as they can: the last one that any worker has begun to make.

        The call then delivers what an ordinary one for so many steps would.
        """
        self._is_cutting = self._cut_at is None
        self._notify()

    def open_locations(self) -> list[WorkLocation]:
        """Return where rows are, wherever they stand."""
        return [state.location for state in self._workers if state.location is not None]

    def beginning(self) -> Beginning:
        """Return the inputs that determine the call's episodes."""
        description = self._parts.versions.env_in_use(self.account.env_version).description
        has_joint_rows = description.num_episodes_per_row is not None
        return dataclasses.replace(super().beginning(), num_rows=self._start.stride, has_joint_rows=has_joint_rows)

    def coming(self) -> list[asyncio.Future[FragmentReport]]:
        """Return the reports that workers still owe."""
        return [in_flight.report for queue in self.in_flight for in_flight in queue]

    def _is_complete(self) -> bool:
        while self._next_worker < len(self._workers):
            state = self._workers[self._next_worker]
            self._check_restored(state)
            if self._is_ending:
                self._abandon_if_overdue(state)
            if state.pending or state.progress is None:
                return False
            self._next_worker += 1
            self._notify()  # the next worker may write more now
        return True

    def _end(self) -> None:
        account = self.account
        # Steps that were simulated and not delivered were made again.
        account.num_lost_steps = account.num_simulated_steps - account.num_steps - account.num_discarded_steps
        account.num_broken_off_episodes = sum(state.num_broken_off for state in self._workers)
        for state, share in zip(self._workers, account.workers, strict=True):
            share.num_missing_steps = (self._num_row_steps - state.num_row_steps) * state.num_rows

    def _is_abandoned(self, worker: int) -> bool:
        return self._workers[worker].is_abandoned

    def _uses(self, worker: int, handle: WorkerHandle) -> bool:
        slot = self._slots[worker]
        return slot.healthy and slot.handle is handle

    async def _next_handle(self, worker: int) -> WorkerHandle | None:
        state, slot = self._workers[worker], self._slots[worker]
        if state.progress is not None and not slot.healthy:  # nothing of it is missing
            state.forget_rows()
            await self._wait()
            return None
        try:
            handle = await self._parts.workers.available(slot)
        except WorkerLostError:
            state.is_missing = True
            if not self._can_wait_for(state):
                raise
            return None
        state.is_missing = state.is_stuck = False
        if state.location is not None and state.location.handle is not handle:
            self._lose_rows(state, WorkerLostError(f"worker {worker} is lost", worker))
        return handle

    def _can_wait_for(self, state: FragmentWorker) -> bool:
        """Whether the call may go on although a slot has no worker for now: the others are enough."""
        num_present = sum(not each.is_missing for each in self._workers)
        is_over = self._parts.workers.is_closed
        return not is_over and num_present >= self._num_enough and self._can_abandon(state)

    def _next_order(self, worker: int, handle: WorkerHandle) -> FragmentOrder | None:
        state = self._workers[worker]
        if self._is_cutting:
            self._find_cut()
        if self._is_cutting or state.progress is not None:
            return None
        samples = state.num_made < state.num_steps
        room = self._room(state)
        # The first answer often brings everything, so nothing is ordered beyond it.
        if state.in_flight and not (samples and self._has_answered[worker]):
            return None
        if room <= 0 and (state.is_stuck or not samples):
            return None
        row_states = None
        if state.location is None:
            state.location = WorkLocation(handle, next(self._parts.ids))
            row_states = self._row_states(state)
        seed, kind = self.sequence.seed, self.sequence.kind
        spec = RowSequenceSpec(
            state.location.work_id,
            seed,
            kind.env_version,
            kind.max_episode_length,
            kind.soft_horizon,
            self._start.stride,
            kind.return_discount,
            kind.first_env_seeds,
        )
        seconds = self._slice_seconds(state.index, may_be_last=self.is_patient) if samples else 0.0
        enough = state.num_needed_row_steps if self._is_ending else self._cut_at
        return FragmentOrder(spec, self._assignment(state), row_states, max(room, 0), seconds, enough)

    def _find_cut(self) -> None:
        """Find the step at which all workers can stop, once each has answered all its orders."""
        if any(state.in_flight for state in self._workers):
            return
        made = (max(state.num_made // state.num_rows, state.num_needed_row_steps) for state in self._workers)
        is_over = any(state.progress is not None for state in self._workers)
        self._cut_at = self._num_row_steps = self._num_row_steps if is_over else max(1, *made)
        for state in self._workers:
            state.num_row_steps = self._cut_at
        self._is_cutting = False
        self._notify()

    def _assignment(self, state: FragmentWorker) -> FragmentAssignment:
        messages = self._request.messages
        return FragmentAssignment(
            call_id=self._call_id,
            policy_version=self._policy_version,
            exploration=self._request.options.exploration,
            num_row_steps=state.num_row_steps,
            num_skipped_steps=state.num_skipped,
            max_message_bytes=messages.max_message_bytes,
            report_actions=self._reports_actions,
            columns=messages.columns,
            external=self._request.external,
        )

    def _row_states(self, state: FragmentWorker) -> Sequence[RowState]:
        """Return what a worker's rows are made from, after any that it had are gone."""
        row_states, state.num_unknown = self._start.states(state.index)
        state.num_skipped, state.num_broken_off = state.num_written, state.num_unknown
        self._notify()
        return row_states

    def _room(self, state: FragmentWorker) -> int:
        """Return how many bytes a worker may write now: half of the window in its turn, else a share of the rest."""
        share = self._settings.window_bytes // 2
        if state.index != self._next_worker:
            share //= len(self._workers)
        return max(share, 1) - state.num_pending_bytes - sum(sent.order.write_bytes for sent in state.in_flight)

    def _take_report(self, worker: int, sent: InFlight[FragmentOrder, FragmentReport], report: FragmentReport) -> None:
        state = self._workers[worker]
        for env_failure in report.env_failures:
            self.account.count_env_failure(worker, env_failure)
        if report.failure is not None:
            self._take_failure(state, report, report.failure)
        else:
            self._take_progress(state, report, sent.buffer)
        if self._is_cutting:
            self._notify()
        did_nothing = not (report.num_simulated_steps or report.messages or report.rows)
        state.is_stuck = state.location is not None and did_nothing
        if not state.is_stuck and self._wakes(report):
            self._notify()

    def _wakes(self, report: FragmentReport) -> bool:
        """Whether others may have something to do after a report."""
        return True

    def _take_progress(self, state: FragmentWorker, report: FragmentReport, buffer: RemoteBuffer) -> None:
        self._has_answered[state.index] = True
        state.num_made += report.num_simulated_steps - report.num_restoring_steps + report.num_idle_steps
        state.num_steps_per_report = max(state.num_steps_per_report, report.num_simulated_steps)
        state.num_broken_off = state.num_unknown + report.num_broken_off
        state.num_row_steps = report.num_row_steps
        if report.messages:
            state.num_needed_row_steps = max(state.num_needed_row_steps, state.num_made // state.num_rows)
            assert state.location is not None  # noqa: S101  # it has just answered
            state.pending.append(_PendingMessages(report.messages, buffer, state.location.handle))
            state.num_written += sum(message.num_steps for message in report.messages)
        if report.rows is not None:
            state.progress = report.rows
        if self._num_enough < len(self._workers) and not self._is_ending:
            self._end_if_enough()

    def _end_if_enough(self) -> None:
        """Have the other workers stop once enough have made all their steps."""
        unfinished = [state for state in self._workers if state.num_made < state.num_steps and state.progress is None]
        if len(self._workers) - len(unfinished) < self._num_enough:
            return
        self._is_ending = True
        for state in self._workers:
            if state not in unfinished:
                state.num_needed_row_steps = self._num_row_steps  # also if it is lost
            elif state.location is not None and state.in_flight and state.has_enough:
                state.location.handle.stop(self._call_id)  # the next order ends the others in time
        loop = asyncio.get_running_loop()
        self._overdue_at = loop.time() + _STOP_SECONDS
        loop.call_at(self._overdue_at + 0.01, self._notify)
        self._notify()

    def _abandon_if_overdue(self, state: FragmentWorker) -> None:
        """Go on without a worker that does not stop, if it has written nothing and its rows can be made again."""
        if state.progress is not None or asyncio.get_running_loop().time() < self._overdue_at:
            return
        if self._can_abandon(state):
            state.abandon()

    def _can_abandon(self, state: FragmentWorker) -> bool:
        """Whether a worker has written nothing and needs no step, and its rows can be made again as they were."""
        has_stopped = state.num_row_steps < self._num_row_steps
        points = self._start.workers[state.index]
        is_restorable = self._reports_actions and all(point.is_restorable for point in points)
        return is_restorable and not (has_stopped or state.num_needed_row_steps)

    def _take_failure(self, state: FragmentWorker, report: FragmentReport, failure: DomainError) -> None:
        """Make rows again that an environment's error has left behind; raise all other failures."""
        location = state.location
        if (
            report.is_stranded
            and location is not None
            and state.num_strandings < self._parts.settings.worker.env_retries
        ):
            state.num_strandings += 1
            state.failure = failure
            self._close_rows(state, location)
            self._restart(state, ENVIRONMENT_FAILED)
            return
        final = [env_failure for env_failure in report.env_failures if env_failure.is_final]
        if isinstance(failure, EnvFailedError) and final:
            raise EnvFailedError(FailedEpisode.of(state.index, final[-1]).final_text)
        raise failure

    def _check_restored(self, state: FragmentWorker) -> None:
        """Raise an error if rows begin other episodes although a part of what they made before is delivered."""
        if not (state.num_broken_off and self._is_seen(state)):
            return
        rows = f"{state.num_broken_off} rows of worker {state.index}"
        text = f"{rows} cannot be brought back to where they stood, but a part of their steps from there is delivered"
        if state.losses:
            raise WorkerLostError(text, state.index)
        if state.failure is not None:
            raise EnvFailedError(f"{state.failure.text}; {text}")
        raise NotReadyError(text, reason=Reason.ROW_STEP_COUNT, field="fragments.row_step_count")

    def _is_seen(self, state: FragmentWorker) -> bool:
        """Whether a part of what a worker's rows did is delivered."""
        return state.num_skipped > 0

    def _lose(self, worker: int, handle: WorkerHandle, error: WorkerLostError) -> None:
        state = self._workers[worker]
        if state.location is not None and state.location.handle is handle:  # else its rows are elsewhere by now
            self._lose_rows(state, error)

    def _lose_rows(self, state: FragmentWorker, error: WorkerLostError) -> None:
        """Record that a worker's rows are gone, with what it had not written."""
        state.forget_rows()
        if state.progress is None:
            self._restart_lost(state, error)

    def _close_rows(self, state: FragmentWorker, location: WorkLocation) -> None:
        """Have a worker end what it does with its rows."""
        state.forget_rows()
        location.stop()
        location.close()

    def _restart(self, state: FragmentWorker, reason: str) -> None:
        """Have a worker make its steps again, except the written ones."""
        state.progress, state.num_made = None, 0
        self._has_answered[state.index] = False
        state.num_row_steps = self._num_row_steps
        self.account.count_retried(reason, len(self._start.workers[state.index]))
        self._notify()

    def _restart_lost(self, state: FragmentWorker, error: WorkerLostError) -> None:
        """Restart a lost worker's part; raise the error if that has happened too often."""
        if not self._has_other_cause(error):
            # Memory grows over many steps, until somebody looks: no single one of them is the cause.
            is_memory = error.reason == Reason.WORKER_OUT_OF_MEMORY
            num_made = self._num_made_before_loss(state)
            state.losses.append(max((num_made, *state.losses)) if is_memory else num_made)
        self._restart(state, error.reason.lower())
        if (num_losses := state.num_losses_at_one_step) > self._settings.unit_retries:
            text = f"{error.text}; {num_losses - 1} workers were lost with the same rows before"
            raise self._convicted(error.again(text))

    def _num_made_before_loss(self, state: FragmentWorker) -> int:
        """Return how many steps a worker had made that is lost, as far as that is known."""
        return state.num_made

    async def _next_delivery(self) -> Delivery | None:
        state = self._workers[self._next_worker]
        if not state.pending:
            return None
        pending = state.pending[0]
        try:
            buffer = await pending.buffer.get()
        except WorkerLostError as error:
            self._lose_written(state, pending, error)
            return None
        state.pending.popleft()
        state.num_done += sum(message.num_steps for message in pending.messages)
        return self._deliver(state.index, pending.messages, buffer)

    def _lose_written(self, state: FragmentWorker, pending: _PendingMessages, error: WorkerLostError) -> None:
        """Record that a machine is gone with all that a worker had written there."""
        state.pending.clear()
        state.num_written = state.num_done
        if state.location is not None and state.location.handle is pending.handle:
            self._parts.workers.lose(state.index, pending.handle, error)
            self._lose_rows(state, error)
        elif state.location is not None:  # its replacement leaves out what is gone
            self._close_rows(state, state.location)
            if state.progress is None:
                self._restart(state, error.reason.lower())
        if state.progress is not None:
            self._restart_lost(state, error)


@dataclass(eq=False)
class FragmentWorker:
    """The state of a worker in a fragment call.

    Attributes:
        index: index of the worker.
        num_row_steps: number of steps that each of its rows makes.
        num_rows: number of its rows.
        location: where the rows are; None if they have to be made.
        in_flight: orders that are not answered.
        num_made: steps made since its rows were made, except repeated steps that brought rows to where they stood.
        num_skipped: steps at the beginning that are not written this time, because they are written or delivered
            already.
        num_written: steps that are written, delivered, or not wanted.
        num_done: the part of them that is not pending.
        pending: what was written and is not delivered.
        progress: where the rows stand, once all is made and written.
        num_unknown: rows that begin their next episodes, because the way back to where they stood is not known.
        num_broken_off: all rows that could not be brought back to where they stood.
        losses: for each time that the worker was lost at its work, the steps that it had reported since its rows were
            made.
        num_steps_per_report: largest number of steps in a report.
        num_strandings: how often its rows were made again because of an environment's error.
        failure: the last such error.
        num_needed_row_steps: number of steps that each row has to make in any case: the least share that the request
            asks for, or more because they are written.
        is_missing: whether the slot has no worker and gets none for now.
        is_abandoned: whether the call goes on without the worker; its rows stand where they did.
        is_stuck: whether the worker had nothing to do with its last order, because it holds as much as it may.
    """

    index: int
    num_row_steps: int
    num_rows: int
    location: WorkLocation | None = None
    in_flight: deque[InFlight[FragmentOrder, FragmentReport]] = field(default_factory=deque)
    num_made: int = 0
    num_skipped: int = 0
    num_written: int = 0
    num_done: int = 0
    pending: deque[_PendingMessages] = field(default_factory=deque)
    progress: Collection[RowProgress] | None = None
    num_unknown: int = 0
    num_broken_off: int = 0
    losses: list[int] = field(default_factory=list)
    num_steps_per_report: int = 0
    num_strandings: int = 0
    failure: DomainError | None = None
    num_needed_row_steps: int = 0
    is_missing: bool = False
    is_abandoned: bool = False
    is_stuck: bool = False

    @property
    def num_steps(self) -> int:
        """Number of steps that its rows make."""
        return self.num_row_steps * self.num_rows

    @property
    def has_enough(self) -> bool:
        """Whether its rows have made the steps that they have to make in any case."""
        return self.num_made >= self.num_needed_row_steps * self.num_rows

    @property
    def num_pending_bytes(self) -> int:
        """Bytes that wait to be delivered."""
        return sum(message.size for pending in self.pending for message in pending.messages)

    @property
    def num_losses_at_one_step(self) -> int:
        """How often the worker may have been lost at the same step, the furthest: a step that kills does so each time.

        The steps of up to two orders were made and not reported.
        """
        furthest = max(self.losses, default=0) - 2 * self.num_steps_per_report
        return sum(num_steps >= furthest for num_steps in self.losses)

    def skip(self, num_steps: int) -> int:
        """Leave out steps at the beginning; return how many of them are beyond the worker's own."""
        self.num_skipped = self.num_written = self.num_done = min(num_steps, self.num_steps)
        return num_steps - self.num_done

    def forget_rows(self) -> None:
        """Expect nothing more from the rows."""
        self.in_flight.clear()
        self.location = None

    def abandon(self) -> None:
        """Go on without the worker; its rows stand where they did before the call."""
        self.progress, self.num_row_steps, self.is_abandoned = [], 0, True


class _PendingMessages(NamedTuple):
    """Messages whose buffer is not fetched yet, and the worker that wrote them."""

    messages: Sequence[Message]
    buffer: RemoteBuffer
    handle: WorkerHandle
