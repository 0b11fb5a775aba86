"""The command `python -m rollserve_server.testing`: a server for tests in any language."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

from rollserve_server.testing.faulty_server import faulty_server
from rollserve_wire.errors import mismatch

if TYPE_CHECKING:
    from rollserve_server.testing.faulty_server import FaultyServer

__all__: list[str] = []

_MAX_BODY_BYTES = 1 << 16
_JSON = "application/json"
_USAGE = "python -m rollserve_server.testing [--control HOST:PORT] [--log FILE] [OPTION…] [-- COMMAND…]"
_DESCRIPTION = """\
Start a server with threads as workers on a free port of 127.0.0.1, run COMMAND with its address in ROLLSERVE_TARGET and
the URL of its control endpoint in ROLLSERVE_TEST_CONTROL, end the server, and exit with COMMAND's status. Without a
COMMAND, print address and URL, a line each, and serve until the standard input ends or a signal comes."""
_NOT_FOUND, _SIGNALLED = 127, 128
"""Exit statuses, as shells have them."""


def main(arguments: Sequence[str]) -> int:
    """Run the command; return its exit status."""
    ours, command = _split(arguments)
    parser = argparse.ArgumentParser(
        usage=_USAGE,
        description=_DESCRIPTION,
        epilog="Other options are those of rollserve-server.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--control", default="127.0.0.1:0", metavar="HOST:PORT", help="where to serve the endpoint")
    parser.add_argument("--log", metavar="FILE", help="a file for the server's log; else warnings on standard error")
    options, server_options = parser.parse_known_args(ours)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    try:
        with (
            faulty_server(*server_options, log=options.log) as server,
            _control_endpoint(options.control, server) as control,
        ):
            if command:
                return _run(command, {"ROLLSERVE_TARGET": server.address, "ROLLSERVE_TEST_CONTROL": control})
            sys.stdout.write(f"{server.address}\n{control}\n")
            sys.stdout.flush()
            while sys.stdin.buffer.read(1 << 16):
                pass
            return 0
    except (RuntimeError, OSError, ValueError) as error:
        sys.stderr.write(f"Error: {error}\n")
        return 1


def _split(arguments: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Return what is before the first `--`, and what is behind it."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:end], arguments[end + 1 :]


def _end(number: int, _: object) -> None:
    """Leave all blocks, so that the server ends."""
    raise SystemExit(0)


def _run(command: Sequence[str], variables: Mapping[str, str]) -> int:
    """Run a command with environment variables, pass SIGTERM on to it, and return its exit status."""
    processes: list[subprocess.Popen[bytes]] = []
    early: list[int] = []  # signals that came while the command was being started

    def pass_on(number: int, _: object) -> None:
        if processes:
            processes[0].send_signal(number)
        else:
            early.append(number)

    signal.signal(signal.SIGTERM, pass_on)
    try:
        process = subprocess.Popen(command, env={**os.environ, **variables})  # noqa: S603  # the caller's own
    except OSError as error:
        sys.stderr.write(f"Error: {command[0]}: {error.strerror}\n")
        return _NOT_FOUND
    processes.append(process)
    for number in early:
        process.send_signal(number)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the command, too
    status = process.wait()
    return status if status >= 0 else _SIGNALLED - status


@contextlib.contextmanager
def _control_endpoint(address: str, server: FaultyServer) -> Iterator[str]:
    """Serve the control endpoint of a server for the duration of the block; yield its URL.

    Args:
        address: where to listen, as `host:port`; port 0 takes a free one.
        server: the server.

    Raises:
        OSError: this process cannot listen there.
        ValueError: the address is malformed.
    """
    host, _, port = address.rpartition(":")
    if not port.isdecimal():
        raise ValueError(f"control: {mismatch('HOST:PORT', repr(address))}")
    with HTTPServer((host, int(port)), _handler(server)) as endpoint:
        thread = threading.Thread(target=endpoint.serve_forever, args=(0.05,), name="control", daemon=True)
        thread.start()
        try:
            yield f"http://{host}:{endpoint.server_port}"
        finally:
            endpoint.shutdown()
            thread.join()


def _handler(server: FaultyServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10.0  # one request at a time: none may keep the others waiting

        def do_GET(self) -> None:
            self._answer({"/faults": server.faults})

        def do_POST(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            if size > _MAX_BODY_BYTES:
                self._send(
                    HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"body: {mismatch(f'at most {_MAX_BODY_BYTES} bytes', size)}"
                )
                return
            body = self.rfile.read(size)
            # Pages in a browser cannot send this type to another origin.
            if self.headers.get_content_type() != _JSON:
                text = f"content-type: {mismatch(_JSON, self.headers.get_content_type())}"
                self._send(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, text)
                return
            self._answer({"/faults": lambda: server.ask(_object(body)), "/reset": server.reset})

        def _answer(self, functions: dict[str, Callable[[], Any]]) -> None:
            function = functions.get(self.path)
            if function is None:
                self._send(HTTPStatus.NOT_FOUND, f"path: {mismatch(' or '.join(functions), self.path)}")
                return
            try:
                self._send(HTTPStatus.OK, function() or {})
            except (RuntimeError, ValueError) as error:
                self._send(HTTPStatus.BAD_REQUEST, str(error))

        def _send(self, status: HTTPStatus, content: Any) -> None:
            body = json.dumps({"error": content} if isinstance(content, str) else content).encode()
            self.send_response(status)
            self.send_header("Content-Type", _JSON)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Log nothing: the standard error is the command's."""

    return Handler


def _object(body: bytes) -> dict[str, Any]:
    value = json.loads(body)  # raises ValueError
    if not isinstance(value, dict):
        raise ValueError(f"body: {mismatch('a JSON object', type(value).__name__)}")
    return value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
