"""Access to the Ray cluster that a server starts: every port needs the server's token."""

from __future__ import annotations

from pathlib import Path

import grpc
import psutil
from support import server_environment

from rollserve_server.local import local_server

METHODS = {
    "gcs_server": ("/ray.rpc.NodeInfoGcsService/GetAllNodeInfo",),
    "raylet": ("/ray.rpc.NodeManagerService/GetNodeStats", "/ray.rpc.ObjectManagerService/Pull"),
    "ray::WorkerActor": ("/ray.rpc.CoreWorkerService/GetCoreWorkerStats",),
}
"""Methods of each kind of process in the cluster, whose requests may be empty. Each port answers one of them."""

KNOWN_TOKEN = "f" * 64
LIGHT = ("--env", "CartPole-v1", "--workers", "1", "--rows", "2")


def listeners(process: psutil.Process) -> list[tuple[str, int]]:
    """Return the kind of process and the port of each listener of the cluster's processes."""
    found = []
    for each in process.children(recursive=True):
        kind = next((kind for kind in METHODS if each.name().startswith(kind)), None)
        ports = {one.laddr.port for one in each.net_connections("tcp") if one.status == psutil.CONN_LISTEN}
        found += [(kind, port) for port in ports if kind]
    return found


def status_of(method: str, port: int, token: str | None) -> grpc.StatusCode:
    """Return the status of a call without a request."""
    metadata = [("authorization", f"Bearer {token}")] if token else None
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(method)
        try:
            call(b"", timeout=10, metadata=metadata)
        except grpc.RpcError as error:
            return error.code()
        return grpc.StatusCode.OK


def test_ray_of_the_server_refuses_calls_without_its_token_whatever_it_inherits(tmp_path: Path) -> None:
    environment = {**server_environment(), "RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": KNOWN_TOKEN}
    with local_server(*LIGHT, log=tmp_path / "log", environment=environment) as server:
        found = listeners(psutil.Process(server.process.pid))
        assert {kind for kind, _ in found} == set(METHODS)
        for kind, port in found:
            for token in (None, KNOWN_TOKEN):
                statuses = {status_of(method, port, token) for method in METHODS[kind]}
                assert statuses - {grpc.StatusCode.UNIMPLEMENTED} == {grpc.StatusCode.UNAUTHENTICATED}, (kind, token)
