"""The parent's side of probes, in the process of a worker or of the gateway."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from multiprocessing.connection import Connection, Pipe
from typing import TYPE_CHECKING, Any, TypeVar

import gymnasium

from rollserve_server.activity import Phase
from rollserve_server.children import Lifeline, launching_module, variables_for_code
from rollserve_server.envs.hosts.relays import current_relay
from rollserve_server.envs.probing.method_calls import MethodCall, call_method
from rollserve_server.envs.probing.probe import Probed, probe
from rollserve_server.envs.probing.rendering import Rendering, VideoForm, render
from rollserve_server.envs.row_specs import WorkerSpecs, specs_of_rows
from rollserve_server.errors import FaultError, InvalidValueError, describe, portable
from rollserve_wire.environments import EnvSpec
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from rollserve_server.settings import HealthSettings, WorkerSettings

__all__ = ["ENVPOOL", "run_method_call", "run_probe", "run_rendering"]

_T = TypeVar("_T")

_ANY, ENVPOOL = b".", b"e"
"""Kinds of environments to try. EnvPool takes seconds to import, so the child imports it once for all probes."""

_MODULE = "rollserve_server.envs.probing.child"
_START_SECONDS = 300.0  # it imports gymnasium, on a machine that may be busy
_LOOK_SECONDS = 0.5
_PART_BYTES = 1 << 20


def run_probe(
    specs: WorkerSpecs, settings: WorkerSettings, health: HealthSettings, ended: threading.Event | None = None
) -> Probed:
    """Try environments in a child process, and return what `probe` does.

    Args:
        specs: environments of a worker, which are allowed.
        settings: settings of workers.
        health: limits of memory, and of time for a step, and for a reset or making an environment.
        ended: is set when nobody waits for the result any more.

    Raises:
        NotFoundError, InvalidValueError, OverLimitError: as of `probe`; or the environment crashed or hung. An id that
            only this process knows, from code that no other process can import, is a NotFoundError, too.
    """
    return _run(specs, functools.partial(probe, specs, settings, health), health, ended)


def run_method_call(
    call: MethodCall, specs: WorkerSpecs, health: HealthSettings, ended: threading.Event | None = None
) -> list[str]:
    """Call a method of environments in a child process, and return the values, as `call_method` does.

    Args:
        call: the call.
        specs: environments of a worker, which are allowed.
        health: limits of memory, and of time for making an environment or for the call.
        ended: is set when nobody waits for the result any more.

    Raises:
        NotFoundError, InvalidValueError, OverLimitError: as of `call_method`; or the environment crashed or hung.
    """
    return _run(specs, functools.partial(call_method, call, specs, health), health, ended)


def run_rendering(
    rendering: Rendering, health: HealthSettings, ended: threading.Event
) -> Generator[VideoForm | bytes, None, None]:
    """Render an episode in a child process, and yield what `render` does.

    Args:
        rendering: the episode, in an environment that is allowed.
        health: limits of memory, and of time for a step, and for a reset or making an environment.
        ended: is set when nobody waits for the result any more.

    Raises:
        NotFoundError, InvalidValueError, OverLimitError, NotReadyError, EnvFailedError: as of `render`; or the
            environment crashed or hung.
    """
    yield from _messages(rendering.spec, functools.partial(render, rendering, health), health, ended)


def _run(specs: WorkerSpecs, job: Callable[[], _T], health: HealthSettings, ended: threading.Event | None) -> _T:
    """Run a job about environments in a child process; return its result, or raise its error."""
    with contextlib.closing(_messages(specs, job, health, ended or threading.Event())) as messages:
        for message in messages:
            return message  # type: ignore[no-any-return]
    raise InvalidValueError("expected a result of the process that tried an environment, got none")


def _messages(
    specs: WorkerSpecs, job: Callable[[], object], health: HealthSettings, ended: threading.Event
) -> Generator[Any, None, None]:
    """Run a job in a child process; yield what it returns or yields, or raise its error. The process is killed then."""
    uses_envpool = isinstance(specs, EnvSpec) and specs.vectorization == "envpool"
    with contextlib.closing(Lifeline()) as lifeline:
        connection, pid = _fork_server.connect(ENVPOOL if uses_envpool else _ANY, lifeline, ended)
        with connection:
            try:
                connection.send((sys.path, _registrations(specs), job, health, current_relay().place))
                yield from _received_until_end(connection, specs, health, ended)
            finally:  # foreign code may have let go of the lifeline, and forks of this process hold it, too
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)


def _received_until_end(
    connection: Connection, specs: WorkerSpecs, health: HealthSettings, ended: threading.Event
) -> Iterator[Any]:
    """Yield the messages of a job's process; the time between them counts only while they are waited for."""
    name = specs.id if isinstance(specs, EnvSpec) else "an environment"
    phase = Phase.MAKING
    while phase is not Phase.IDLE:
        seconds = health.step_seconds if phase is Phase.STEP else health.reset_seconds
        try:
            message = _received(connection, seconds, ended)
        except TimeoutError:
            text = f"{name} hung when it was tried: {phase.value} took more than {seconds:g} s"
            raise InvalidValueError(text, reason=Reason.ENV_REFUSED) from None
        except (EOFError, OSError):
            text = f"{name} ended its process when it was tried, in {phase.value}"
            raise InvalidValueError(text, reason=Reason.ENV_REFUSED) from None
        except Exception as error:
            text = f"{name} wrote to its process's connection when it was tried, in {phase.value}: {describe(error)}"
            raise InvalidValueError(text, reason=Reason.ENV_REFUSED) from None
        if isinstance(message, Phase):
            phase = message
        elif isinstance(message, Exception):
            failure = portable(message)
            if isinstance(failure, FaultError):
                failure.is_of_child = True
            raise failure
        else:
            yield message


def _received(connection: Connection, seconds: float, ended: threading.Event | None = None) -> Any:
    """Return the next message of a probe; raise TimeoutError if there is none in time, or nobody waits for it."""
    # As `Connection.recv`, which would wait for ever for the rest of what foreign code has written there.
    until = time.monotonic() + seconds
    (size,) = struct.unpack("!i", _read(connection, 4, until, ended))
    if size == -1:
        (size,) = struct.unpack("!Q", _read(connection, 8, until, ended))
    return pickle.loads(_read(connection, size, until, ended))  # noqa: S301  # from the probe


def _read(connection: Connection, num_bytes: int, until: float, ended: threading.Event | None) -> bytes:
    content = bytearray()
    while len(content) < num_bytes:
        while not connection.poll(_LOOK_SECONDS):
            if time.monotonic() > until or (ended is not None and ended.is_set()):
                raise TimeoutError
        part = os.read(connection.fileno(), min(num_bytes - len(content), _PART_BYTES))
        if not part:
            raise EOFError
        content += part
    return bytes(content)


class _ForkServer:
    """The process that forks the processes of probes. It starts when it is needed, and ends when it is idle."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline: Lifeline | None = None

    def connect(self, kind: bytes, lifeline: Lifeline, ended: threading.Event) -> tuple[Connection, int]:
        """Return the connection to a new process, which waits for its arguments, and its process id.

        Args:
            kind: `_ANY` or `ENVPOOL`.
            lifeline: what the process, and all that it starts, live by.
            ended: is set when nobody waits for the process any more.

        Raises:
            RuntimeError: the process that forks others ends at once.
            TimeoutError: it does not start in time, or nobody waits any more.
        """
        with lifeline.end() as end:
            for _ in range(2):  # it may just have ended because it was idle
                ours, theirs = Pipe()
                with theirs, self._lock:
                    if self._process is None or self._process.poll() is not None:
                        self._start()
                    process, control = self._process, self._control
                    assert process is not None and control is not None  # noqa: S101, PT018
                    with contextlib.suppress(OSError):
                        socket.send_fds(control, [kind], [theirs.fileno(), end])
                try:
                    return ours, _received(ours, _START_SECONDS, ended)
                except TimeoutError:
                    ours.close()
                    if not ended.is_set():  # else others may use the process
                        process.kill()
                        process.wait()
                    expected = f"expected a process that forks processes of probes within {_START_SECONDS:g} s"
                    raise TimeoutError(f"{expected}, got none") from None
                except (EOFError, OSError):
                    ours.close()
                    process.kill()
                    process.wait()
        raise RuntimeError("expected a process that forks processes of probes, but it ended")

    def close(self) -> None:
        """End the process, if there is one."""
        if self._process is not None and self._control is not None:
            self._control.close()
            self._process.kill()
            self._process.wait()

    def _start(self) -> None:
        for held in (self._control, self._lifeline):
            if held is not None:
                held.close()
        self._control, theirs = socket.socketpair()
        self._lifeline = Lifeline()
        with theirs, self._lifeline.end() as end:
            self._process = subprocess.Popen(  # noqa: S603
                launching_module(end, _MODULE, str(theirs.fileno())),
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno(), end],
                process_group=0,
                # With threads of BLAS, the process could not be forked safely.
                env={**variables_for_code(), "OPENBLAS_NUM_THREADS": "1"},
            )


def _registrations(specs: WorkerSpecs) -> list[bytes]:
    """Return the registrations of the ids that specs name, pickled, as far as they can be.

    A module that an earlier request named may have registered ids, which requests can then name without the module. A
    new process does not know them.
    """
    names = {spec.id for spec in specs_of_rows(specs, num_rows=1)} & gymnasium.registry.keys()
    pickled = []
    for name in sorted(names):
        with contextlib.suppress(Exception):  # an entry point may be a function that has no name
            pickled.append(pickle.dumps(gymnasium.registry[name]))
    return pickled


_fork_server = _ForkServer()
atexit.register(_fork_server.close)
