"""Work on a row sequence."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import numpy as np

from rollserve_server.activity import current_activity
from rollserve_server.envs import ManyEnvs, VectorEnvs
from rollserve_server.errors import DomainError, OverLimitError
from rollserve_server.sampling.encode.encoder import EncodedMessage, Encoding, write_messages
from rollserve_server.sampling.fragments.collector import AgentFragmentCollector
from rollserve_server.sampling.fragments.driving import AgentDriving, ManyDriving
from rollserve_server.sampling.fragments.many import ManyFragmentCollector
from rollserve_server.sampling.fragments.rows import RowFragmentCollector
from rollserve_server.sampling.fragments.vector import VectorFragmentCollector
from rollserve_server.sampling.protocol import ENDING, FragmentAssignment, FragmentOrder, FragmentReport, Message
from rollserve_server.sampling.record.spilling import SpillError
from rollserve_server.sampling.work.bounds import buffer_bytes, spill_bytes
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from numpy.typing import NDArray

    from rollserve_server.envs import RowEnvs
    from rollserve_server.sampling.collect.acting import Evaluator
    from rollserve_server.sampling.fragments.collector import FragmentCollector
    from rollserve_server.sampling.fragments.driving import Driving
    from rollserve_server.sampling.installed import InstalledAgents
    from rollserve_server.sampling.protocol import External, RowProgress, RowSequenceSpec, RowState
    from rollserve_server.settings import WorkerSettings

__all__ = ["FragmentWork"]


class FragmentWork:
    """Samples fragments of a row sequence, call after call, and writes them.

    Attributes:
        spec: the row sequence.
        envs: environments that nothing else uses.
        collector: loop that steps the rows.
    """

    def __init__(
        self,
        sequence: RowSequenceSpec,
        envs: RowEnvs | VectorEnvs | ManyEnvs,
        states: Sequence[RowState],
        agents: InstalledAgents,
        worker_index: int,
        settings: WorkerSettings,
        new_buffer: Callable[[int], NDArray[np.uint8]],
    ) -> None:
        """Begin with rows that have to be restored.

        Args:
            sequence: the row sequence.
            envs: environments that nothing else uses.
            states: states to restore the rows from.
            agents: installed agents.
            worker_index: index of the worker, for the messages.
            settings: retries, and how much memory and disk the steps of a call may take.
            new_buffer: makes a buffer of so many bytes for messages.
        """
        self.spec = sequence
        self.envs = envs
        self._agents, self._worker_index = agents, worker_index
        self._settings, self._buffer_bytes = settings, buffer_bytes(settings)
        self._new_buffer = new_buffer
        self.collector: FragmentCollector
        options = states, settings.env_retries, self._buffer_bytes
        if isinstance(envs, ManyEnvs):
            self.collector = ManyFragmentCollector(sequence, envs, *options)
        elif isinstance(envs, VectorEnvs):
            self.collector = VectorFragmentCollector(sequence, envs, *options)
        else:
            self.collector = RowFragmentCollector(sequence, envs, *options)
        # In the order: the steps that rows have made, those of them that restored rows, and those left out.
        self._num_simulated_steps = self._num_restoring_steps = self._num_idle_steps = 0
        self._assignment: FragmentAssignment | None = None
        self._failed_call_id: int | None = None
        self._evaluator: Evaluator | None = None
        self._driving: Driving | None = None
        self._is_restored = False
        self._checked_step_bytes = 0
        self._num_steps_to_write = 0
        self._has_reported_progress = False

    def run(
        self,
        order: FragmentOrder,
        is_stopped: Callable[[], bool],
        is_urgent: Callable[[], bool],
    ) -> tuple[FragmentReport, NDArray[np.uint8]]:
        """Carry out an order; further orders of a call that has failed do nothing.

        `is_stopped` ends the steps before one, and `is_urgent` after one, by returning True.

        Returns:
            The report, and the buffer with its messages.
        """
        assignment, rows = order.assignment, self.collector
        self._num_simulated_steps = self._num_restoring_steps = self._num_idle_steps = 0
        began = sampled = time.perf_counter()
        messages: tuple[Message, ...] = ()
        buffer, failure, driven = np.empty(0, np.uint8), None, None
        try:
            if assignment.call_id != self._failed_call_id:  # else a step may be half recorded
                self._begin(assignment)
                if self._driving is not None:
                    self._driving.add(order.actions)
                if order.enough_row_steps is not None:
                    self._shorten(order.enough_row_steps)
                if order.seconds > 0:
                    self._sample(order.seconds, is_stopped, is_urgent)
                    if self._driving is not None and self._is_restored:
                        driven = self._driving.shown()
                sampled = time.perf_counter()
                if assignment.columns is None:
                    if self._driving is None or not self.collector.num_steps_left:  # else with each of its steps
                        messages = self._discard()
                else:
                    encoding = Encoding(
                        assignment.recorded_version, self._worker_index, assignment.columns, self._evaluator
                    )
                    messages, buffer = self._write(encoding, assignment.max_message_bytes, order.write_bytes)
        except DomainError as error:
            failure = error.with_traceback(None)  # which has this frame, which has the error
        except SpillError as error:
            failure = self._not_spilled(assignment, error)
        if failure is not None:
            self._failed_call_id = assignment.call_id
        env_failures, _ = rows.attempts.take()
        environment_seconds, policy_seconds = current_activity().split(sampled - began)
        report = FragmentReport(
            messages=messages,
            rows=self._take_progress() if failure is None else None,
            num_row_steps=rows.num_steps,
            num_simulated_steps=self._num_simulated_steps,
            num_restoring_steps=self._num_restoring_steps,
            num_broken_off=rows.num_broken_off,
            sampling_seconds=sampled - began,
            encoding_seconds=time.perf_counter() - sampled,
            failure=failure,
            env_failures=env_failures,
            is_stranded=rows.is_stranded,
            environment_seconds=environment_seconds,
            policy_seconds=policy_seconds,
            driven=driven,
            num_idle_steps=self._num_idle_steps,
        )
        return report, buffer

    def _begin(self, assignment: FragmentAssignment) -> None:
        """Begin a call, unless it runs already.

        Raises:
            OverLimitError: the steps of the call do not fit into memory and disk.
        """
        previous, self._assignment, external = self._assignment, assignment, assignment.external
        acts_on = previous is not None and previous.acting == assignment.acting
        if previous is not None and previous.call_id == assignment.call_id:
            # The first actions may have brought another version, which policies by name are built with.
            if external is not None and not acts_on and isinstance(self.envs, ManyEnvs):
                self._drive(assignment, external, acts_on=False)
            return
        versions = assignment.policy_version, self.spec.env_version
        if external is not None:
            self._drive(assignment, external, acts_on=acts_on)
        elif not acts_on:
            self.collector.set_agent(self._agents.built(*versions, assignment.exploration, self.envs))
        has_values = assignment.columns is not None and assignment.columns.last_values
        self._evaluator = None
        if has_values:
            self._evaluator = self._agents.evaluator(*versions, assignment.exploration, self.envs)
        self._checked_step_bytes = 0
        self._check_size(assignment)
        self.collector.begin_call(assignment.num_row_steps, report_actions=assignment.report_actions)
        self.collector.outbox.begin_call(assignment.num_skipped_steps)
        self._num_steps_to_write = assignment.num_row_steps * self.collector.num_rows - assignment.num_skipped_steps
        self._has_reported_progress = False

    def _drive(self, assignment: FragmentAssignment, external: External, *, acts_on: bool) -> None:
        """Let a client act in the call; `acts_on` if it acted alike before."""
        if not isinstance(self.envs, ManyEnvs):
            assert isinstance(self.collector, AgentFragmentCollector)  # noqa: S101  # as these environments have
            self._driving = AgentDriving(external, self.collector, self.envs)
            self.collector.set_agent(self._driving.agent)
            return
        assert isinstance(self.collector, ManyFragmentCollector)  # noqa: S101  # as these environments have
        if acts_on and isinstance(self._driving, ManyDriving):
            agents = self._driving.agent
        else:
            version, exploration = assignment.policy_version, assignment.exploration
            agents = self._agents.built_beside(external, version, exploration, self.envs)
            self.collector.set_agent(agents)
        self._driving = ManyDriving(external, self.collector, self.envs, agents)

    def _shorten(self, num_row_steps: int) -> None:
        """End the call after `num_row_steps` steps of each row, or after the steps made if those are more."""
        rows, before = self.collector, self.collector.num_steps
        if num_row_steps < before and rows.num_steps_left:
            rows.shorten(num_row_steps)
            self._num_steps_to_write -= (before - rows.num_steps) * rows.num_rows

    def _sample(self, seconds: float, is_stopped: Callable[[], bool], is_urgent: Callable[[], bool]) -> None:
        """Step until the time is over, the rows have made all steps, or the waiting fragments fill the buffer.

        The steps of a call always fit into memory and disk, but short fragments take memory besides their steps.

        Raises:
            EnvFailedError: an environment failed too often, or its row `is_stranded`.
            AgentFailedError: the agent failed.
            OverLimitError: steps take more than was known, as with new infos, and do not fit.
            SpillError: steps have to be spilled, and cannot be.
        """
        assert self._assignment is not None  # noqa: S101  # a call has begun
        until = time.perf_counter() + seconds
        rows = self.collector
        while rows.num_steps_left and rows.outbox.num_bytes < self._buffer_bytes and not is_stopped():
            if num_steps := rows.restore():
                self._num_restoring_steps += num_steps
                self._num_simulated_steps += num_steps
            elif self._driving is not None and not self._driving.has_actions:
                self._is_restored = True
                break
            else:
                self._is_restored = True
                num_idle = self._step_rows()
                self._num_simulated_steps += rows.num_rows - num_idle + rows.num_repeated_steps
                self._num_idle_steps += num_idle
                self._num_steps_to_write -= num_idle
                self._num_restoring_steps += rows.num_repeated_steps
                self._check_size(self._assignment)
            if time.perf_counter() >= until or is_urgent():
                break

    def _step_rows(self) -> int:
        """Step all rows, except those that a client lets rest; return the number of these."""
        if self._driving is None:
            self.collector.step()
            return 0
        return self._driving.step()

    def _write(
        self, encoding: Encoding, max_message_bytes: int, write_bytes: int
    ) -> tuple[tuple[Message, ...], NDArray[np.uint8]]:
        """Write messages, in the order of the fragments, until they have `write_bytes` or nothing more waits.

        Raises:
            OverLimitError: a single step does not fit into a message.
        """
        messages: list[EncodedMessage] = []
        places: list[Message] = []
        outbox, is_end = self.collector.outbox, not self.collector.num_steps_left
        num_bytes = 0
        while num_bytes < write_bytes:
            message = outbox.next_message(encoding, max_message_bytes, self._buffer_bytes, is_end=is_end)
            if message is None:
                break
            places.append(message.place(num_bytes))
            messages.append(message)
            num_bytes += message.num_bytes
            self._num_steps_to_write -= message.info.num_steps
        buffer = write_messages(messages, self._new_buffer)
        outbox.forget_written()
        return tuple(places), buffer

    def _discard(self) -> tuple[Message, ...]:
        """Throw away the waiting fragments; return a message without bytes that counts them, if there are any."""
        num_steps, endings = self.collector.outbox.discard()
        self._num_steps_to_write -= num_steps
        num_episodes = len(endings) // ENDING.itemsize
        return (Message(0, 0, num_steps, num_episodes, endings=endings),) if num_steps else ()

    def _take_progress(self) -> Collection[RowProgress] | None:
        """Return where the rows stand once all steps of the call are made and written, and None in later calls.

        There is none of any row if the rows have made no step: some may still have to be restored.
        """
        if self.collector.num_steps_left or self._num_steps_to_write or self._has_reported_progress:
            return None
        self._has_reported_progress = True
        return self.collector.progress() if self.collector.num_steps else ()

    def _check_size(self, assignment: FragmentAssignment) -> None:
        """Check that the steps of the call fit into memory and disk, whenever a step takes more than was known.

        Raises:
            OverLimitError: they do not fit.
        """
        step_bytes = self.collector.step_bytes
        if step_bytes <= self._checked_step_bytes:
            return
        self._checked_step_bytes = step_bytes
        joint_step_bytes = self.collector.num_rows * step_bytes
        num_bytes = assignment.num_row_steps * joint_step_bytes
        if num_bytes <= self._buffer_bytes:
            return
        disk_bytes = spill_bytes(self._settings)
        max_bytes = self._buffer_bytes + disk_bytes
        if num_bytes <= max_bytes:
            return
        num_steps, num_fitting = assignment.num_row_steps * self.spec.stride, max_bytes // joint_step_bytes
        limit = f"the {self._buffer_bytes} bytes of memory and {disk_bytes} bytes of disk that a worker has for a call"
        if num_fitting:
            expected = f"at most {num_fitting * self.spec.stride}, to fit into {limit}"
            num_workers = math.ceil(num_steps * step_bytes / max_bytes)
            hint = f"ask for fewer steps, have at least {num_workers} workers, which share the steps, or raise"
        else:
            expected = f"steps that fit into {limit}"
            hint = (
                f"have fewer rows on each worker, because one step of its rows takes {joint_step_bytes} bytes, or raise"
            )
        hint = f"{hint} --worker-buffer-bytes and --worker-spill-bytes to a sum of at least {num_bytes}"
        raise OverLimitError.of(
            "step_count", expected=expected, got=num_steps, hint=hint, reason=Reason.FRAGMENTS_TOO_LARGE
        )

    def _not_spilled(self, assignment: FragmentAssignment, error: SpillError) -> OverLimitError:
        """Return the error for a call whose steps could not be spilled."""
        expected = f"steps that fit into the {self._buffer_bytes} bytes of memory that a worker has for a call"
        hint = (
            f"temporary files cannot hold the others: {error}; ask for fewer steps, have more workers, which share the "
            "steps, make room, or raise --worker-buffer-bytes"
        )
        num_steps, reason = assignment.num_row_steps * self.spec.stride, Reason.FRAGMENTS_TOO_LARGE
        return OverLimitError.of("step_count", expected=expected, got=num_steps, hint=hint, reason=reason)
