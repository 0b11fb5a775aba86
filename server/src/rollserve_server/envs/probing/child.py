"""The child's side of probes: a process that has imported gymnasium, and forks a process for each probe.

A forked process begins within about 10 ms, where a new one takes half a second to import what it needs. It may crash or
hang without harm to the worker.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import signal
import socket
import sys
from multiprocessing.connection import Connection
from types import FrameType, GeneratorType

import gymnasium

import rollserve_server.settings  # noqa: F401  # each fork would import what jobs are made of
from rollserve_server.activity import Activity, Phase
from rollserve_server.children import live_by
from rollserve_server.envs.hosts.relays import WorkerRelay
from rollserve_server.envs.probing.memory import limit_memory
from rollserve_server.envs.probing.run import ENVPOOL
from rollserve_server.errors import portable

__all__ = ["serve"]

_IDLE_SECONDS = 20.0  # the process takes about 60 MB

_running: set[int] = set()
"""Running processes of probes; each leads a group."""


class _ReportedActivity(Activity):
    """The activity of a probe, which sends each phase to the parent."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection

    def begin(self, phase: Phase, row: int = 0) -> None:
        super().begin(phase, row)
        self._connection.send(phase)


def serve(control: socket.socket) -> None:
    """Fork a process for each connection that arrives. Return after 20 s without any.

    Args:
        control: a Unix socket; each message is a kind of environments to try, and has the descriptors of a connection,
            and of the end of a `Lifeline` for the process.
    """
    signal.signal(signal.SIGCHLD, _reap)
    control.settimeout(_IDLE_SECONDS)
    while True:
        try:
            message, descriptors, *_ = socket.recv_fds(control, 1, 2)
        except TimeoutError:
            if _running:
                continue
            return
        if not message:
            return
        if message == ENVPOOL:
            with contextlib.suppress(Exception):  # the probe meets the same exception
                importlib.import_module("envpool.registration")
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        pid = os.fork()
        if pid == 0:
            control.close()
            _run(*descriptors)
        _running.add(pid)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
        for descriptor in descriptors:
            os.close(descriptor)


def _run(descriptor: int, end: int) -> None:
    """Run a job in a forked process, which ends here. What it returns, or yields, is sent, then `Phase.IDLE`."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    os.setpgid(0, 0)
    live_by(end)
    nothing = os.open(os.devnull, os.O_RDWR)
    for output in (1, 2):  # the worker's own environments print the same
        os.dup2(nothing, output)
    connection = Connection(descriptor)
    connection.send(os.getpid())
    sys.path[:], registered, job, health, place = connection.recv()
    limit_memory(health)
    try:
        with _ReportedActivity(connection).at_work(), WorkerRelay(place).in_use():
            _register(registered)
            result = job()
            for part in result if isinstance(result, GeneratorType) else (result,):
                connection.send(part)
        connection.send(Phase.IDLE)
    except BaseException as error:
        connection.send(portable(error))
    os._exit(0)  # without running exit handlers of libraries


def _register(pickled: list[bytes]) -> None:
    """Register what the parent has registered, where this process can import its code."""
    for each in pickled:
        with contextlib.suppress(Exception):
            spec = pickle.loads(each)  # noqa: S301  # written by the parent
            gymnasium.registry.setdefault(spec.id, spec)


def _reap(_number: int, _frame: FrameType | None) -> None:
    for pid in list(_running):
        try:
            ended = os.waitpid(pid, os.WNOHANG)[0] != 0
        except ChildProcessError:  # this handler was called again meanwhile, and was first
            ended = True
        if ended:
            _running.discard(pid)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
