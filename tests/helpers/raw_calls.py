"""Servers for clients that misbehave, and raw gRPC streams that do what no Python client does."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
from cutting_proxy import CuttingProxy
from google.protobuf.message import Message
from support import server_environment

import rollserve
from rollserve_server.local import LocalServer, local_server

SERVICE = "/rollserve.v1.SamplerService"
FOREVER = 10**9
BIG = (
    *("--env", "sample_envs:Big", "--env-kwargs", '{"observation_bytes": 131072}', "--seed", "3"),
    *("--backend", "in-process", "--workers", "1", "--rows", "2"),
    *("--call-window-bytes", str(4 << 20), "--worker-buffer-bytes", str(8 << 20)),
)
"""Options of a server whose steps are so large, and buffers so small, that a client that does not read stalls soon."""


@contextlib.contextmanager
def serving(tmp_path: Path, *options: str) -> Iterator[tuple[LocalServer, rollserve.Sampler]]:
    """Yield a server with an agent, and a client that behaves; the server's log must have no traceback in the end."""
    log = tmp_path / "log"
    with (
        local_server(*options, log=log, environment=server_environment()) as server,
        rollserve.connect(server.address) as sampler,
    ):
        sampler.update_agent(rollserve.RandomAgent())
        yield server, sampler
    assert "Traceback" not in log.read_text(), log.read_text()


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


def begin(channel: grpc.Channel, name: str, request: Message | bytes) -> grpc.Call:
    """Open a stream and read its first message; raise the error of a rejected call."""
    data = request if isinstance(request, bytes) else request.SerializeToString()
    call = channel.unary_stream(f"{SERVICE}/{name}")(data)
    next(call)
    return call


def end_of(call: grpc.Call) -> tuple[grpc.StatusCode, str]:
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
