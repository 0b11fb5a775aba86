"""Servers that clients do to what no Python client would, and the streams of such clients."""

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
"""A server whose steps are so large, and buffers so small, that a client which takes none is soon kept waiting."""


@contextlib.contextmanager
def serving(tmp_path: Path, *options: str) -> Iterator[tuple[LocalServer, rollserve.Sampler]]:
    """A server with an agent, and a client that does as it should. Nothing may be the server's fault."""
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
    """A connection that is nobody else's.

    It may take not even a byte of a stream before somebody reads that, or many megabytes.
    """
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
    if takes_nothing:
        options += [("grpc.http2.lookahead_bytes", 0), ("grpc.http2.bdp_probe", 0)]
    if takes_all:
        options += [("grpc.http2.lookahead_bytes", 64 << 20), ("grpc.http2.bdp_probe", 0)]
    with grpc.insecure_channel(server.address, options=options) as channel:
        yield channel


def begin(channel: grpc.Channel, name: str, request: Message | bytes) -> grpc.Call:
    """A stream of which nothing is read but its first message, or whose error is raised."""
    data = request if isinstance(request, bytes) else request.SerializeToString()
    call = channel.unary_stream(f"{SERVICE}/{name}")(data)
    next(call)
    return call


def end_of(call: grpc.Call) -> tuple[grpc.StatusCode, str]:
    """How a stream ends, when it is read at last: its status, and the reason."""
    with contextlib.suppress(grpc.RpcError):
        for _ in call:
            pass
    return call.code(), dict(call.trailing_metadata() or ()).get("rollserve-reason", "")


def soon(condition: Callable[[], bool], seconds: float = 60) -> bool:
    """Whether something comes true."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True
