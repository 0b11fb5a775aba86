"""A worker, as the pool sees it, and its work in progress."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import threadpoolctl

from rollserve_server.activity import Activity, current_activity
from rollserve_server.envs import WorkerRelay, pickle_uniform_boxes, probe, run_method_call, run_probe, with_envpool
from rollserve_server.errors import DomainError, WorkerLostError
from rollserve_server.machine import package_versions
from rollserve_server.sampling.encode.encoder import new_array
from rollserve_server.sampling.installed import InstalledAgents, InstalledEnvs
from rollserve_server.sampling.protocol import (
    EnvDescription,
    FragmentOrder,
    Order,
    Population,
    PopulationOrder,
    WorkerIdentity,
)
from rollserve_server.sampling.work.episodes import EpisodeWork
from rollserve_server.sampling.work.fragments import FragmentWork
from rollserve_server.sampling.work.populations import PopulationWork

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    import numpy as np
    from numpy.typing import NDArray

    from rollserve_server.activity import Heartbeat
    from rollserve_server.agents import AgentSpec
    from rollserve_server.envs import ManyEnvs, MethodCall, Probed, RelayPlace, RowEnvs, VectorEnvs, WorkerSpecs
    from rollserve_server.sampling.protocol import Members, SequenceSpec, WorkOrder
    from rollserve_server.settings import HealthSettings, WorkerSettings

__all__ = ["Worker"]

_R = TypeVar("_R")


class Worker:
    """Samples episodes and writes them as messages.

    Methods are called one at a time, within `at_work()`, except `stop`, `announce` and `heartbeat`, which may be called
    while another one runs.

    Attributes:
        activity: what the worker is doing.
    """

    def __init__(
        self,
        worker_index: int,
        settings: WorkerSettings,
        new_buffer: Callable[[int], NDArray[np.uint8]] = new_array,
        relay: RelayPlace | None = None,
    ) -> None:
        """Start without versions and without work.

        Args:
            worker_index: index of the worker.
            settings: how rows are stepped, and bounds.
            new_buffer: makes the buffers that `work` returns, given their number of bytes.
            relay: where the worker reaches the hosts of the server's gateway; None for no place.
        """
        # Workers share the machine's cores, and are fastest with one thread each.
        threadpoolctl.threadpool_limits(1)
        pickle_uniform_boxes()
        self.activity = Activity()
        self._worker_index, self._settings, self._new_buffer = worker_index, settings, new_buffer
        self._envs, self._agents = InstalledEnvs(settings), InstalledAgents()
        self._relay = WorkerRelay(relay)
        self._probes: dict[str, threading.Event] = {}
        # The work in progress, by the pool's number for it. Each has rows for itself, and shares its agent.
        self._works: dict[int, EpisodeWork | FragmentWork | PopulationWork] = {}
        # Numbers of works and of fragment calls. `stop` adds to it from other threads.
        self._stopped: set[int] = set()
        # The highest number of an urgent call that was announced, and the number of the last one that was answered.
        self._announced = self._answered = 0
        self._is_closed = False

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Have the present thread be at work for the worker for the duration of the block."""
        with self.activity.at_work(), self._relay.in_use():
            yield

    def use_relay(self, place: RelayPlace | None) -> None:
        """Reach the hosts of the server's gateway at this place from now on; None for no place."""
        self._relay.place = place

    def identity(self) -> WorkerIdentity:
        """Return the process and the host of the worker, and its packages."""
        return WorkerIdentity(os.getpid(), socket.gethostname(), package_versions())

    def heartbeat(self) -> Heartbeat:
        """Return what the worker is doing now. May be called while another method runs."""
        return self.activity.look()

    def installed_versions(self) -> tuple[set[int], set[int]]:
        """Return the installed versions of the environment and of the agent."""
        return self._envs.versions, self._agents.versions

    def probe_env(self, specs: WorkerSpecs, health: HealthSettings, probe_id: str) -> Probed:
        """Try environments in a child process, with time limits, and install nothing. May run beside other methods.

        Args:
            specs: the environments.
            health: the limits.
            probe_id: a name for `end_probe`, which no other probe has.

        Raises:
            NotFoundError, InvalidValueError, OverLimitError: as `run_probe`.
        """
        with self._probing(probe_id) as ended:
            return run_probe(with_envpool(specs, self._settings), self._settings, health, ended)

    def call_env_method(self, call: MethodCall, specs: WorkerSpecs, health: HealthSettings, probe_id: str) -> list[str]:
        """Call a method of environments in a child process, with time limits. May run beside other methods.

        Args:
            call: the call.
            specs: the environments, which are made for it.
            health: the limits.
            probe_id: as of `probe_env`.

        Returns:
            The values as JSON: one for all rows, or one for each row.

        Raises:
            NotFoundError, InvalidValueError, OverLimitError: as `run_method_call`.
        """
        with self._probing(probe_id) as ended:
            return run_method_call(call, specs, health, ended)

    def end_probe(self, probe_id: str) -> None:
        """End a probe or call of a method whose result nobody waits for, if it runs. May run beside other methods."""
        if (ended := self._probes.get(probe_id)) is not None:
            ended.set()

    def probe_env_here(self, specs: WorkerSpecs, health: HealthSettings) -> Probed:
        """Try environments in this process, whose code may know ids that no other process can import.

        Returns and raises as `probe_env`.
        """
        return probe(with_envpool(specs, self._settings), self._settings, health)

    def add_env(self, version: int, specs: WorkerSpecs) -> EnvDescription:
        """Install a version of the environment, and return its properties.

        Versions below 0 are environments of evaluations, which share nothing with others.

        Raises:
            NotFoundError, InvalidValueError: the environment cannot be made, or its rows differ in their spaces. The
                error has the row.
        """
        try:
            description = self._envs.install(version, specs).describe()
        except DomainError:
            self._envs.check_process()
            raise
        self._agents.forget_built()
        return description

    def add_agent(self, version: int, spec: AgentSpec) -> None:
        """Install a version of the agent, which has been checked to fit its environment.

        Raises:
            NotFoundError, InvalidValueError: as `load_agent`.
        """
        self._agents.install(version, spec)

    def add_population(self, population: Population, members: Members) -> None:
        """Open the work on a population, given the parameters of its members, which have been checked.

        Raises:
            DomainError: environments or the agent cannot be made, or the worker is closed.
        """
        self._check_open()
        envs = self._envs[population.env_version].take_single_rows()
        with self._giving_back_on_error(population.env_version, envs):
            agent = self._agents.built_population(population, members, envs)
            self._works[population.work_id] = PopulationWork(population, envs, agent, self._settings.env_retries)

    def retain(self, env_versions: Collection[int], policy_versions: Collection[int]) -> None:
        """Evict all other versions.

        Only the newest retained environment and environments of evaluations keep rows that no work uses.
        """
        self._envs.retain(env_versions)
        self._agents.retain(policy_versions)

    def work(self, order: WorkOrder[_R]) -> tuple[_R, NDArray[np.uint8]]:
        """Carry out a slice of work.

        Returns:
            The report, and the buffer with its messages.

        Raises:
            DomainError: the work cannot be opened, or the worker is closed. Other errors are in the report.
        """
        self._check_open()
        work: Any  # the kind of order determines R
        numbers: tuple[int, ...]
        match order:
            case Order():
                work, numbers = self._episode_work(order.sequence), (order.sequence.work_id,)
            case FragmentOrder():
                work, numbers = self._fragment_work(order), (order.sequence.work_id, order.assignment.call_id)
            case PopulationOrder():
                work, numbers = self._works[order.work_id], (order.work_id,)
            case _:
                raise TypeError(f"expected an order, got {type(order).__name__}")
        current_activity().episode_of = work.collector.episode_index
        answer: tuple[_R, NDArray[np.uint8]] = work.run(
            order, lambda: not self._stopped.isdisjoint(numbers), lambda: self._announced > self._answered
        )
        return answer

    def stop(self, work_id: int) -> None:
        """End the steps of a work after the current one. May be called while another method runs.

        With the `call_id` of a fragment assignment, the steps of that call end; its fragments can still be written.
        """
        self._stopped.add(work_id)

    def announce(self, number: int) -> None:
        """End the steps of orders after the current one, until `answer_urgently` with this number has been called.

        May be called while another method runs, and after `answer_urgently`.
        """
        self._announced = max(self._announced, number)

    def answer_urgently(self, number: int, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method by its name. Later orders are not shortened any more.

        Args:
            number: number of the call, higher than of all earlier ones.
            method: name of the method.
            *args: its arguments.
            **kwargs: its named arguments.
        """
        self._answered = number
        return getattr(self, method)(*args, **kwargs)

    def close_work(self, work_id: int) -> None:
        """Close a work, if it is open and after it has been stopped: other works can use its rows."""
        self._stopped.discard(work_id)
        work = self._works.pop(work_id, None)
        if work is not None:
            self._envs.give_back(work.spec.env_version, work.envs)

    def stop_all(self) -> None:
        """Stop all works, and expect no urgent call any more: another caller begins to number them."""
        self._stopped.update(list(self._works))
        self._announced = self._answered = 0

    def close_all_work(self) -> None:
        """Close all works."""
        for work_id in list(self._works):
            self.close_work(work_id)

    def close(self) -> None:
        """Close all environments. Calls that have not ended yet lose the worker."""
        self._is_closed = True
        for work in self._works.values():
            work.envs.close()
        self.retain((), ())

    def _check_open(self) -> None:
        if self._is_closed:
            raise WorkerLostError(f"worker {self._worker_index} is lost: it was closed", self._worker_index)

    def _episode_work(self, sequence: SequenceSpec) -> EpisodeWork | FragmentWork | PopulationWork:
        """Return the work on a sequence, opened if it is new; raises DomainError as `work`."""
        if sequence.work_id not in self._works:
            envs = self._envs[sequence.env_version].take(sequence.max_episode_length)
            with self._giving_back_on_error(sequence.env_version, envs):
                work = EpisodeWork(sequence, envs, self._agents, self._settings, self._new_buffer)
                self._works[sequence.work_id] = work
        return self._works[sequence.work_id]

    def _fragment_work(self, order: FragmentOrder) -> EpisodeWork | FragmentWork | PopulationWork:
        """Return the work on a row sequence, opened with the order's states if it is new; raises as `work`."""
        sequence = order.sequence
        if sequence.work_id not in self._works:
            assert order.states is not None  # noqa: S101  # the pool knows which works are open
            limit = None if sequence.soft_horizon else sequence.max_episode_length
            envs = self._envs[sequence.env_version].take_for_fragments(limit)
            options = self._agents, self._worker_index, self._settings, self._new_buffer
            self._works[sequence.work_id] = FragmentWork(sequence, envs, order.states, *options)
        for number in tuple(self._stopped):  # a call may be stopped after it has ended
            if number < order.assignment.call_id and number not in self._works:
                self._stopped.discard(number)
        return self._works[sequence.work_id]

    @contextlib.contextmanager
    def _probing(self, probe_id: str) -> Iterator[threading.Event]:
        """Provide the event that ends a probe, or a call of a method, before its time."""
        ended = self._probes[probe_id] = threading.Event()
        try:
            with self._relay.in_use():
                yield ended
        finally:
            del self._probes[probe_id]

    @contextlib.contextmanager
    def _giving_back_on_error(self, env_version: int, envs: RowEnvs | VectorEnvs | ManyEnvs) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._envs.give_back(env_version, envs)
            raise
