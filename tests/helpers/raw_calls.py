"""Servers for clients that misbehave, and raw gRPC streams that do what no Python client does."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
from cutting_proxy import CuttingProxy
from google.protobuf.message import Message
from support import server_environment

import rollserve
from rollserve_server.local import LocalServer, local_server

SERVICE = "/rollserve.v1.SamplerService"
FOREVER = 10**9
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The first bytes of an HTTP/2 client."""
_WINDOW_BYTES = 65535
"""How much of a stream, and of a connection, the server takes at first."""
BIG = (
    *("--env", "sample_envs:Big", "--env-kwargs", '{"observation_bytes": 131072}', "--seed", "3"),
    *("--backend", "in-process", "--workers", "1", "--rows", "2"),
    *("--call-window-bytes", str(4 << 20), "--worker-buffer-bytes", str(8 << 20)),
)
"""Options of a server whose steps are so large, and buffers so small, that a client that does not read stalls soon."""


@contextlib.contextmanager
def serving(
    tmp_path: Path, *options: str, module: str = "rollserve_server"
) -> Iterator[tuple[LocalServer, rollserve.Sampler]]:
    """Yield a server with an agent, and a client that behaves; the server's log must have no traceback in the end."""
    log = tmp_path / "log"
    with (
        local_server(*options, log=log, environment=server_environment(), module=module) as server,
        rollserve.connect(server.address) as sampler,
    ):
        sampler.update_agent(rollserve.RandomAgent())
        yield server, sampler
    assert "Traceback" not in log.read_text(), log.read_text()


@contextlib.contextmanager
def as_new(server: LocalServer) -> Iterator[tuple[LocalServer, rollserve.Sampler]]:
    """Yield what `serving` does, of a server that other tests have used."""
    server.reset()
    with rollserve.connect(server.address) as sampler:
        sampler.update_agent(rollserve.RandomAgent())
        yield server, sampler


@contextlib.contextmanager
def careless(
    server: LocalServer | CuttingProxy, *, takes_nothing: bool = False, takes_all: bool = False
) -> Iterator[grpc.Channel]:
    """Yield a connection of its own to a server.

    Args:
        server: server or proxy to connect to.
        takes_nothing: whether gRPC receives not even a byte of a stream before it is read.
        takes_all: whether gRPC receives up to 64 MiB of a stream before it is read.
    """
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
    if takes_nothing:
        options += [("grpc.http2.lookahead_bytes", 0), ("grpc.http2.bdp_probe", 0)]
    if takes_all:
        options += [("grpc.http2.lookahead_bytes", 64 << 20), ("grpc.http2.bdp_probe", 0)]
    with grpc.insecure_channel(server.address, options=options) as channel:
        yield channel


def begin(channel: grpc.Channel, name: str, request: Message | bytes) -> Any:
    """Open a stream and read its first message; raise the error of a rejected call."""
    data = request if isinstance(request, bytes) else request.SerializeToString()
    call = channel.unary_stream(f"{SERVICE}/{name}")(data)
    next(call)
    return call


def end_of(call: Any) -> tuple[grpc.StatusCode, str]:
    """Read a stream to its end and return its status and reason."""
    with contextlib.suppress(grpc.RpcError):
        for _ in call:
            pass
    return call.code(), dict(call.trailing_metadata() or ()).get("rollserve-reason", "")


def soon(condition: Callable[[], bool], seconds: float = 60) -> bool:
    """Whether a condition holds before a time limit."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


class UnfinishedRequest:
    """An RPC over a connection of its own, whose request announces more bytes than it sends."""

    def __init__(self, address: str, path: str, num_bytes: int, *, source: str = "127.0.0.1", token: str = "") -> None:
        """Open the RPC and announce a request.

        Args:
            address: address of the server.
            path: path of the RPC.
            num_bytes: announced size of the request.
            source: address of this machine to connect from.
            token: token of the client; empty for none.
        """
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=10, source_address=(source, 0))
        fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "server"}
        fields |= {"te": "trailers", "content-type": "application/grpc"}
        fields |= {"authorization": f"Bearer {token}"} if token else {}
        headers = b"".join(b"\0" + _sized(name) + _sized(value) for name, value in fields.items())
        self._windows = {0: _WINDOW_BYTES, 1: _WINDOW_BYTES}
        self._received = b""
        self.is_over = False
        self._socket.sendall(PREFACE + _frame(4, 0, 0) + _frame(1, 4, 1, headers))
        self.send(b"\0" + struct.pack(">I", num_bytes))

    def wait_until_read(self) -> None:
        """Wait until the server begins to read the request: then it takes more bytes than of any other."""
        while self._windows[1] <= _WINDOW_BYTES:
            self._receive()

    def send(self, data: bytes) -> None:
        """Send some bytes of the request, as far as the server takes them."""
        rest = memoryview(data)
        while rest and not self.is_over:
            size = min(len(rest), 1 << 14, *self._windows.values())
            try:
                if size:
                    self._socket.sendall(_frame(0, 0, 1, bytes(rest[:size])))
                    self._windows = {stream: left - size for stream, left in self._windows.items()}
                    rest = rest[size:]
                else:
                    self._receive()
            except OSError:
                self.is_over = True

    def is_over_soon(self) -> bool:
        """Whether the server ends the RPC within half a second."""
        self._socket.settimeout(0.5)
        with contextlib.suppress(TimeoutError):
            while not self.is_over:
                self._receive()
        return self.is_over

    def close(self) -> None:
        self._socket.close()

    def _receive(self) -> None:
        """Receive a frame: a larger window, settings and pings to acknowledge, or the end of the RPC."""
        head = self._take(9)
        kind, flags, (stream,) = head[3], head[4], struct.unpack(">I", head[5:])
        content = self._take(int.from_bytes(head[:3], "big"))
        if kind == 8:
            self._windows[stream] += int.from_bytes(content, "big")
        elif kind in (4, 6) and not flags & 1:
            self._socket.sendall(_frame(kind, 1, 0, content if kind == 6 else b""))
        elif kind in (1, 3, 7):
            self.is_over = True

    def _take(self, size: int) -> bytes:
        while len(self._received) < size:
            received = self._socket.recv(1 << 16)
            if not received:
                raise ConnectionError("the server has closed the connection")
            self._received += received
        taken, self._received = self._received[:size], self._received[size:]
        return taken


def _frame(kind: int, flags: int, stream: int, content: bytes = b"") -> bytes:
    return struct.pack(">I", len(content))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + content


def _sized(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()
