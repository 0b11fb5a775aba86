"""Check the health of a container; the exit status is 0 if it is healthy.

python health.py grpc PORT    # gRPC's health service on this machine
python health.py tcp PORT     # whether something listens at a port of the container's first address

A check waits for something to listen, so that a container that starts is healthy as soon as it can be: the engine's
next check would come seconds later.
"""

from __future__ import annotations

import socket
import sys
import time

_SECONDS = 2.0
"""How long an answer may take."""
_START_SECONDS, _PERIOD_SECONDS = 10.0, 0.1
"""How long a check waits for something to listen, and how often it looks."""


def grpc_serves(port: int) -> bool:
    """Return whether gRPC's health service at a port says SERVING."""
    if not tcp_listens(port, "127.0.0.1"):
        return False
    # Imported here, because this takes longer than all else, and something listens now.
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    # A proxy that the environment names has a loopback address of its own.
    with grpc.insecure_channel(f"127.0.0.1:{port}", [("grpc.enable_http_proxy", 0)]) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=_SECONDS)
        except grpc.RpcError as error:
            print(error.code().name, file=sys.stderr)
            return False
    return answer.status == health_pb2.HealthCheckResponse.SERVING


def tcp_listens(port: int, host: str = "") -> bool:
    """Return whether something accepts connections at a port of a host, or of the container's first address."""
    until = time.monotonic() + _START_SECONDS
    while True:
        try:
            socket.create_connection((host or socket.gethostname(), port), _SECONDS).close()
        except OSError as error:
            if time.monotonic() > until:
                print(error, file=sys.stderr)
                return False
        else:
            return True
        time.sleep(_PERIOD_SECONDS)


if __name__ == "__main__":
    kind, text = sys.argv[1:]
    sys.exit(not {"grpc": grpc_serves, "tcp": tcp_listens}[kind](int(text)))
