"""Addresses that servers of gRPC listen at."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollserve_wire.errors import mismatch

if TYPE_CHECKING:
    import grpc
    import grpc.aio

__all__ = ["listen"]


def listen(
    server: grpc.aio.Server, address: str, setting: str, credentials: grpc.ServerCredentials | None = None
) -> int:
    """Have a server listen at an address, which a setting names, and return the port; without credentials, in plain.

    Raises:
        OSError: the server cannot listen there.
    """
    try:
        if credentials is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, credentials)
    except RuntimeError as error:
        text = mismatch("an address to listen at", address, "is the port in use?")
        raise OSError(f"{setting}: {text}") from error
