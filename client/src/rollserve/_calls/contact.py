"""Contact with a server: whether it has ever answered, which decides what calls do while it is away."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc

from rollserve._calls.gateways import Gateways
from rollserve._calls.rpc_errors import reason_of

if TYPE_CHECKING:
    from rollserve._calls.connection import Connection

__all__ = ["Contact"]


class Contact:
    """Contact with the server of one connection.

    A call that begins while the server is away, or that loses it before its own beginning, waits for the server, within
    the call's own time limits, if the server has answered before. Otherwise the address may be wrong, so the call fails
    at once.

    Attributes:
        connection: arguments of the connection.
        gateways: gateways that the connection's target stands for.
        was_made: whether the server has answered.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.gateways = Gateways(connection.target)
        self.was_made = False

    def is_lost(self, error: grpc.RpcError) -> bool:
        """Whether an error means that a server which has answered before is away, without an error of its own."""
        return self.was_made and error.code() is grpc.StatusCode.UNAVAILABLE and not reason_of(error)
