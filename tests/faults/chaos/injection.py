"""Injection of the scheduled faults."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from faults.chaos.events import EventLog
from faults.chaos.fleet import Fleet
from faults.chaos.schedule import Fault
from faults.chaos.service import Service
from faults.chaos.updates import Updates

__all__ = ["Injector"]


class Injector:
    """Injector of faults, with a thread that makes updates one after the other."""

    def __init__(self, service: Service, fleet: Fleet, updates: Updates, log: EventLog) -> None:
        self._service = service
        self._fleet = fleet
        self._updates = updates
        self._log = log
        self._updating = ThreadPoolExecutor(1, thread_name_prefix="updates")
        self._timers: list[threading.Timer] = []
        self._began = time.monotonic()
        self._actions: Mapping[str, Callable[[Fault], None]] = {
            "worker killed": lambda fault: self._kill(self._worker(fault.draw)),
            "worker paused": lambda fault: self._pause(self._worker(fault.draw), fault.lasts_seconds),
            "host killed": lambda fault: self._kill(self._host(fault.draw)),
            "gateway killed": lambda fault: self._start_again(self._service.kill, fault.draw),
            "gateway ended": lambda fault: self._start_again(self._service.stop, fault.draw),
            "gateway paused": lambda fault: self._pause(self._service.pid, fault.lasts_seconds),
            "client killed": lambda fault: self._fleet.kill(self._fleet.chosen(fault.draw)),
            "client paused": lambda fault: self._pause(self._client(fault.draw), fault.lasts_seconds),
            "agent updated": lambda fault: self._update(self._updates.update_agent, fault.draw),
            "parameters updated": lambda fault: self._update(self._updates.update_parameters, fault.draw),
            "env updated": lambda fault: self._update(self._updates.update_env, fault.draw),
            "pool resized": lambda fault: self._update(self._updates.resize, fault.draw),
            "journal killed": lambda _: self._kill(self._service.journal()),
            "gateway upgraded": self._upgrade,
        }

    def run(self, faults: Sequence[Fault], seconds: float) -> None:
        """Inject each fault at its time, and return after `seconds`.

        The clock stands still while the server restarts, so that no fault is left out.
        """
        for fault in faults:
            self._wait(fault.at_seconds)
            self._log.write("fault", kind=fault.kind, draw=fault.draw, lasts_seconds=fault.lasts_seconds)
            self._actions[fault.kind](fault)
        self._wait(seconds)

    def _wait(self, seconds: float) -> None:
        """Wait until the clock of the schedule reaches `seconds`."""
        time.sleep(max(self._began + seconds - time.monotonic(), 0))

    @contextlib.contextmanager
    def resting(self) -> Iterator[None]:
        """Finish the updates, and stop the clock of the schedule during the block."""
        self._updating.submit(lambda: None).result()
        began = time.monotonic()
        try:
            yield
        finally:
            self._began += time.monotonic() - began

    def close(self) -> None:
        """Wait for updates and pauses to end."""
        for timer in self._timers:
            timer.join()
        self._updating.shutdown()

    def _kill(self, pid: int) -> None:
        """Kill a process; 0 stands for none."""
        with contextlib.suppress(ProcessLookupError):
            if pid:
                os.kill(pid, signal.SIGKILL)

    def _worker(self, draw: float) -> int:
        """Return the process id of a worker, or 0 if there is none at the moment."""
        workers = self._service.workers()
        return workers[int(draw * len(workers))].pid if workers else 0

    def _host(self, draw: float) -> int:
        """Return the process id of a host, or 0 if there is none at the moment."""
        hosts = self._service.hosts()
        return hosts[int(draw * len(hosts))].pid if hosts else 0

    def _client(self, draw: float) -> int:
        return self._fleet.pid(self._fleet.chosen(draw))

    def _pause(self, pid: int, seconds: float) -> None:
        """Stop a process for some seconds."""
        if not pid:
            return

        def resume() -> None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
        self._timers.append(threading.Timer(seconds, resume))
        self._timers[-1].start()

    def _start_again(self, end: Callable[[], None], draw: float) -> None:
        for timer in self._timers:
            timer.join()  # a paused process cannot end in order
        ended = time.monotonic()
        end()
        self._service.start()
        self._began += time.monotonic() - ended
        self._log.write("gateway back")
        self._update(self._updates.begin, draw)

    def _upgrade(self, _: Fault) -> None:
        """Have a server of another version take the sampler over from the present one."""
        for timer in self._timers:
            timer.join()
        began = time.monotonic()
        self._service.upgrade()
        self._began += time.monotonic() - began

    def _update(self, update: Callable[[float], None], draw: float) -> None:
        self._updating.submit(self._safely, update, draw)

    def _safely(self, update: Callable[[float], None], draw: float) -> None:
        try:
            update(draw)
        except Exception as error:
            self._log.write("updated", kind=update.__name__, outcome=type(error).__name__, text=str(error))
