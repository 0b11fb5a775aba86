"""Check the health of a container; the exit status is 0 if it is healthy.

python health.py grpc PORT    # gRPC's health service on this machine
python health.py tcp PORT     # whether something listens at a port of the container's first address
"""

from __future__ import annotations

import socket
import sys

_SECONDS = 2.0


def grpc_serves(port: int) -> bool:
    """Return whether gRPC's health service at a port says SERVING."""
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=_SECONDS)
        except grpc.RpcError as error:
            print(error.code().name, file=sys.stderr)
            return False
    return answer.status == health_pb2.HealthCheckResponse.SERVING


def tcp_listens(port: int) -> bool:
    """Return whether something accepts connections at a port of the container's first address."""
    try:
        socket.create_connection((socket.gethostname(), port), _SECONDS).close()
    except OSError as error:
        print(error, file=sys.stderr)
        return False
    return True


if __name__ == "__main__":
    kind, text = sys.argv[1:]
    sys.exit(not {"grpc": grpc_serves, "tcp": tcp_listens}[kind](int(text)))
