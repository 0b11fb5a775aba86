"""Opens connections to hosts: to one that is started for it, that listens, or that has a stream to the gateway."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from rollserve_server.children import Lifeline, launching_command, variables_for_code
from rollserve_server.envs.host_starts import CONNECTED
from rollserve_server.envs.hosts.connection import HostConnection, HostError, HostLostError, receive, send
from rollserve_server.envs.hosts.packages import python_with
from rollserve_server.envs.hosts.sandboxes import MAX_PRINTED_BYTES, sandboxed, variables_in_sandbox

if TYPE_CHECKING:
    from rollserve_server.envs.host_starts import HostStart
    from rollserve_server.envs.hosts.relays import WorkerRelay

__all__ = ["open_connected", "open_dialled", "start_host"]

_DESCRIPTOR = "ROLLSERVE_ROWS_FD"
"""The variable that names the descriptor of a started host's socket."""
_BOOT = """
import importlib.util, sys
folder = sys.argv.pop(1)
spec = importlib.util.spec_from_file_location("rollserve_env_host", folder + "/__init__.py")
module = sys.modules["rollserve_env_host"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
from rollserve_env_host.__main__ import main
main()
"""
"""Runs the package in a folder: a Python of its own may have any version of it, or none."""
_MAX_LINES, _MAX_LINE_BYTES = 10, 1000
_PRINT_SECONDS = 1.0
"""How long a host that has ended may leave its output open: to processes that it has started."""
_END_SECONDS = 5.0
"""How long a host may take to close its environments, once its connection is closed."""
_CONNECT_SECONDS = 20.0
"""How long a host may be away: until it listens again, rows wait."""
_PAUSE_SECONDS = 0.2
_RELAY_SECONDS = 60.0
"""How long the relay may take to answer, which lets rows wait as long as hosts may be away."""
_MAX_REFUSAL_BYTES = 1 << 16
_BUFFER_BYTES = 1 << 20


def start_host(start: HostStart, env_id: str) -> HostConnection:
    """Start a host, which ends within 5 s of its connection, and return the connection.

    Raises:
        HostError: the program cannot be started, or ends before it says hello; the text has the last that it printed.
    """
    ours, theirs = socket.socketpair()
    for each in (ours, theirs):
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    lifeline, read_end, write_end = Lifeline(), *os.pipe()
    printed = _Printed(read_end, MAX_PRINTED_BYTES if start.sandbox else sys.maxsize)
    try:
        command, variables = _command(start, env_id), variables_for_code()
        if start.sandbox:
            package = () if start.command else (str(_package()),)
            command = sandboxed(command, start.sandbox, theirs.fileno(), package)
            variables = variables_in_sandbox()
        with lifeline.end() as end:
            process = subprocess.Popen(  # noqa: S603
                launching_command(end, command),
                pass_fds=[end, theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=write_end,
                stderr=write_end,
                process_group=0,
                env={**variables, _DESCRIPTOR: str(theirs.fileno())},
            )
    except BaseException:
        ours.close()
        lifeline.close()
        raise
    finally:
        theirs.close()  # else nobody would see that the host has closed it
        os.close(write_end)
    try:
        return HostConnection(ours, lambda: _end(lifeline, process))
    except HostError as error:
        last = printed.last()
        raise type(error)(f"{error}{f'; the last that it printed is: {last}' if last else ''}") from error


def open_dialled(address: str, *, waits: bool) -> HostConnection:
    """Connect to a host that listens at `rows://HOST:PORT`, or with TLS at `rows+tls://HOST:PORT`.

    Args:
        address: the address.
        waits: whether to wait for up to 20 s until the host listens.

    Raises:
        HostError: there is no host, its certificate is not trusted, or it does not speak the protocol.
    """
    parts = urlsplit(address)
    try:
        place = parts.hostname or "", parts.port or 0
    except ValueError:
        raise HostError(f"id: expected rows://HOST:PORT, got {address!r}") from None
    until = time.monotonic() + _CONNECT_SECONDS
    while True:
        try:
            stream = _stream_to(place)
            if parts.scheme == "rows+tls":
                stream = ssl.create_default_context().wrap_socket(stream, server_hostname=place[0])
            stream.settimeout(None)
            return HostConnection(stream, lambda: None)
        except ssl.SSLError as error:
            raise HostError(str(error)) from error
        except (OSError, HostLostError) as error:
            if not waits or time.monotonic() + _PAUSE_SECONDS > until:
                raise HostError(str(error)) from error
            time.sleep(_PAUSE_SECONDS)


def open_connected(env_id: str, relay: WorkerRelay, *, waits: bool) -> HostConnection:
    """Take a seat of the hosts that have opened streams to the gateway, which an id such as `host:NAME` names.

    Args:
        env_id: the id.
        relay: where the gateway has them.
        waits: whether to wait for up to 20 s until a seat is free.

    Raises:
        HostError: there is no free seat, or the gateway is gone.
    """
    place = relay.place
    if place is None:
        raise HostError("expected a worker of a server whose gateway takes hosts, got no worker")
    try:
        stream = _stream_to((place.host, place.port))
    except OSError as error:
        raise HostError(f"the gateway, which has the hosts, is out of reach: {error}") from error
    try:
        stream.settimeout(_RELAY_SECONDS)
        knock = {"secret": place.secret, "name": env_id.removeprefix(CONNECTED), "waits": waits}
        send(stream, json.dumps(knock).encode())
        refusal = receive(stream, _MAX_REFUSAL_BYTES)
        stream.settimeout(None)
        if refusal:
            raise HostError(refusal.decode())
    except BaseException:
        stream.close()
        raise
    return HostConnection(stream, lambda: None)


def _stream_to(place: tuple[str, int]) -> socket.socket:
    """Return a connection that sends at once, and notices a machine that is gone; raise OSError if there is none."""
    stream = socket.create_connection(place, timeout=_CONNECT_SECONDS)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return stream


class _Printed:
    """What a host prints, of which so many bytes go to the worker's own standard error."""

    def __init__(self, descriptor: int, max_bytes: int) -> None:
        self._lines: deque[bytes] = deque(maxlen=_MAX_LINES)
        self._bytes_left = max_bytes
        self._thread = threading.Thread(target=self._copy, args=(descriptor,), name="host output", daemon=True)
        self._thread.start()

    def last(self) -> str:
        """Return the last lines of a host that has ended."""
        self._thread.join(_PRINT_SECONDS)
        return b"".join(self._lines).decode(errors="replace").strip()

    def _copy(self, descriptor: int) -> None:
        with os.fdopen(descriptor, "rb") as printed:
            for line in iter(lambda: printed.readline(_MAX_LINE_BYTES), b""):
                self._lines.append(line)
                self._bytes_left -= len(line)
                if self._bytes_left < 0:
                    continue
                with contextlib.suppress(OSError, ValueError):
                    sys.stderr.write(line.decode(errors="replace"))


def _end(lifeline: Lifeline, process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_SECONDS)
    lifeline.close()
    process.wait()


def _command(start: HostStart, env_id: str) -> Sequence[str]:
    if start.command:
        return start.command
    python = start.python or sys.executable
    if start.packages:
        python = python_with(start.packages, start.python, runs_code=not start.sandbox)
    return python, "-c", _BOOT, str(_package()), env_id


def _package() -> Path:
    """Return the folder of `rollserve_env_host`; raise HostError if it is not installed."""
    found = importlib.util.find_spec("rollserve_env_host")
    if found is None or found.origin is None:
        raise HostError("python: expected the package rollserve-env-host on the server, got none")
    return Path(found.origin).parent
