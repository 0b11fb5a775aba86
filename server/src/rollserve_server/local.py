"""A server in a process of its own on this machine, for as long as a block: for demonstrations and tests."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

__all__ = ["LocalServer", "local_server"]

_START_SECONDS = 180.0
_STOP_SECONDS = 30.0
_SHOWN_OF_LOG = 2000
"""Characters."""


class LocalServer:
    """A running server.

    Attributes:
        address: `host:port`, for `rollserve.connect`.
        process: its process.
    """

    def __init__(self, address: str, process: subprocess.Popen[bytes]) -> None:
        self.address = address
        self.process = process

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Sends it a signal, and returns its exit status once it has ended.

        Raises:
            subprocess.TimeoutExpired: it has not; it is killed then.
        """
        self.process.send_signal(number)
        try:
            return self.process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


@contextlib.contextmanager
def local_server(
    *options: str, log: Path | None = None, environment: Mapping[str, str] | None = None
) -> Iterator[LocalServer]:
    """Starts a server on a free port of this machine, and ends it at the end of the block.

    It ends by itself when this process is killed.

    Args:
        options: of `rollserve-server`, such as `--env`, `CartPole-v1`.
        log: where its log goes; to this process's standard error unless given.
        environment: environment variables for it, beside those of this process.

    Raises:
        RuntimeError: it did not start; with the end of its log if that is a file.
    """
    with tempfile.TemporaryDirectory(prefix="rollserve-") as folder, contextlib.ExitStack() as stack:
        port_file = Path(folder, "port")
        command = [sys.executable, "-m", "rollserve_server", "--listen", "127.0.0.1:0", "--port-file", str(port_file)]
        command += ["--end-with-parent", str(os.getpid())]
        process = subprocess.Popen(  # noqa: S603  # the options are the caller's own
            [*command, *options],
            stderr=None if log is None else stack.enter_context(log.open("wb")),
            env={**os.environ, **(environment or {})},
        )
        server = LocalServer("", process)
        try:
            server.address = f"127.0.0.1:{_wait_for_port(process, port_file, log)}"
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
    return f"; its log ends with\n{log.read_text(errors='replace')[-_SHOWN_OF_LOG:]}" if log else ""
