"""A server on this machine for the duration of a block: for demonstrations, benchmarks and tests."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

__all__ = ["LocalServer", "local_server"]

_START_SECONDS = 180.0
_STOP_SECONDS = 30.0
_MAX_LOG_CHARACTERS = 2000
"""Limit of the log's end in an error."""


class LocalServer:
    """A running server.

    Attributes:
        address: `host:port`, for `rollserve.connect`.
        process: the server's process.
    """

    def __init__(self, address: str, process: subprocess.Popen[bytes], control: socket.socket) -> None:
        self.address = address
        self.process = process
        self._control = control

    def request(self, request: str) -> str:
        """Send a request on the control socket; return what the answer says beyond `done`.

        Args:
            request: a line, without its end: `reset`, or what else the server's program answers.

        Raises:
            RuntimeError: the server has ended, or the answer is an error.
        """
        try:
            self._control.sendall(f"{request}\n".encode())
            answer = self._control.makefile().readline().strip()
        except OSError as error:
            raise RuntimeError(f"the server does not answer: {error}") from error
        state, _, text = answer.partition(" ")
        if state != "done":
            raise RuntimeError(answer.removeprefix("failed: ") or "the server has ended")
        return text

    def reset(self) -> None:
        """Bring the sampler to where it was when the server had just started.

        The sampler has its first environment as version 1, no agent, and its number of workers of the start; its
        counters are zero, and calls without a seed deliver the same episodes again. It is in a new run, so that calls
        of the previous run fail.

        With `--backend in-process` this takes some milliseconds, with Ray as long as workers take to start.

        Raises:
            RuntimeError: the server has ended, or cannot start the workers again. In the second case nothing changes.
        """
        self.request("reset")

    def __repr__(self) -> str:
        status = self.process.poll()
        state = f"process {self.process.pid}" if status is None else f"ended with status {status}"
        return f"<LocalServer {self.address!r}, {state}>"

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal to the server; return its exit status once it has ended.

        Args:
            number: number of the signal.

        Raises:
            subprocess.TimeoutExpired: the server did not end within 30 s, and was killed.
        """
        self.process.send_signal(number)
        try:
            return self.process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


@contextlib.contextmanager
def local_server(
    *options: str,
    log: str | os.PathLike[str] | None = None,
    environment: Mapping[str, str] | None = None,
    module: str = "rollserve_server",
) -> Iterator[LocalServer]:
    """Start a server on a free port of this machine, and end it after the block, or when this process is killed.

    Args:
        options: options of `rollserve-server`, such as `--env`, `CartPole-v1`.
        log: path of a file for the server's log; None for this process's standard error.
        environment: environment variables for the server, beside the present ones.
        module: module that this Python runs as the server.

    Raises:
        RuntimeError: the server did not start within 180 s. The text quotes the end of the log if it is a file.
    """
    # Imported late: pytest imports this module with its plugin, which projects pay for that do not use it.
    from rollserve_wire.receipts import HASH_SEED, HASH_SEED_NAME

    path = None if log is None else Path(log)
    with tempfile.TemporaryDirectory(prefix="rollserve-") as folder, contextlib.ExitStack() as stack:
        port_file = Path(folder, "port")
        control, theirs = map(stack.enter_context, socket.socketpair())
        control.settimeout(_START_SECONDS)
        command = [sys.executable, "-m", module, "--listen", "127.0.0.1:0", "--port-file", str(port_file)]
        command += ["--end-with-parent", str(os.getpid()), "--control-fd", str(theirs.fileno())]
        process = subprocess.Popen(  # noqa: S603  # the options are the caller's own
            [*command, *options],
            stderr=None if path is None else stack.enter_context(path.open("wb")),
            env={**os.environ, HASH_SEED_NAME: HASH_SEED, **(environment or {})},
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        server = LocalServer("", process, control)
        try:
            server.address = f"127.0.0.1:{_wait_for_port(process, port_file, path)}"
            yield server
        finally:
            if process.poll() is None:
                server.stop()


def _wait_for_port(process: subprocess.Popen[bytes], port_file: Path, log: Path | None) -> int:
    deadline = time.monotonic() + _START_SECONDS
    while not port_file.exists():
        if process.poll() is not None:
            text = f"the server ended with status {process.returncode} before it was ready"
            raise RuntimeError(text + _end_of(log))
        if time.monotonic() > deadline:
            raise RuntimeError(f"the server was not ready after {_START_SECONDS:g} s" + _end_of(log))
        time.sleep(0.05)
    return int(port_file.read_text())


def _end_of(log: Path | None) -> str:
    return f"; its log ends with\n{log.read_text(errors='replace')[-_MAX_LOG_CHARACTERS:]}" if log else ""
