"""The control endpoint: tests in any language ask it for faults and resets, over HTTP."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

from rollserve_wire.errors import mismatch

if TYPE_CHECKING:
    from rollserve_server.testing.faulty_server import FaultyServer

__all__ = ["control_endpoint"]

_MAX_BODY_BYTES = 1 << 16
_JSON = "application/json"


@contextlib.contextmanager
def control_endpoint(address: str, server: FaultyServer) -> Iterator[str]:
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
