"""Places for open RPCs: bounded in all and by client, with room made for clients that have fewer."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Generator
from typing import TYPE_CHECKING

from rollserve_server.errors import CallTooLongError, ClientStalledError, DomainError, OverLimitError
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from rollserve_server.gateway.rpcs.open_rpc import OpenRpc

__all__ = ["Places"]


class Places:
    """A bounded number of places for open RPCs, with bounds for each client and for each address and principal.

    When there is none left, an RPC is ended to make room: of the client with the most places, the one that has had its
    place longest. The newcomer's client, or its address, must have at least two places fewer. A client is a principal,
    or else a connection.

    Attributes:
        max_in_all: number of places.
        max_of_client: number of places of one client; None for no bound.
        max_of_peer: number of places of one address, and of one principal.
    """

    def __init__(
        self,
        what: str,
        max_in_all: int,
        *,
        max_of_client: int | None = None,
        max_of_peer: int | None = None,
        patience_seconds: float | None = None,
    ) -> None:
        """Start with all places free.

        Args:
            what: the RPCs, for messages.
            max_in_all: number of places.
            max_of_client: number of places of one client; None for no bound.
            max_of_peer: number of places of one address, and of one principal; None for no bound.
            patience_seconds: how long a request may take to arrive when somebody else needs the place. Only RPCs whose
                request has not arrived are ended then. None if any RPC may be ended, for a client with fewer.
        """
        self._what = what
        self.max_in_all = max_in_all
        self.max_of_client = max_of_client
        self.max_of_peer = max_of_peer or max_in_all
        self._patience_seconds = patience_seconds
        self._rpcs: dict[OpenRpc, None] = {}  # in order of arrival
        self._num_charged: Counter[str] = Counter()
        self._num_by_client: Counter[str] = Counter()

    @contextlib.contextmanager
    def held_by(self, rpc: OpenRpc) -> Generator[None, None, None]:
        """Give an RPC a place for the block.

        Raises:
            OverLimitError: there is none, for all clients together, or for the RPC's client, address or principal.
        """
        full = None
        for charged in rpc.charged_to:
            if self._num_charged[charged] >= self.max_of_peer:
                full = charged
                break
        if self.max_of_client is not None and self._num_by_client[rpc.peer] >= self.max_of_client:
            raise self._full(f"{self.max_of_client} {self._what} of a client")
        if full is not None:
            self._make_room(rpc, full, f"{self.max_of_peer} {self._what} of an address or a principal at a time")
        elif len(self._rpcs) >= self.max_in_all:
            self._make_room(rpc, None, f"{self.max_in_all} {self._what} at a time")
        self._rpcs[rpc] = None
        self._count(rpc, 1)
        try:
            yield
        finally:
            self._free(rpc)

    async def admit(self, stack: contextlib.ExitStack, rpc: OpenRpc) -> None:
        """Give an RPC a place until the stack is closed, at once; raises as `held_by`."""
        stack.enter_context(self.held_by(rpc))

    def _make_room(self, newcomer: OpenRpc, charged: str | None, limit: str) -> None:
        """End an RPC; raise OverLimitError if none may be ended.

        Args:
            newcomer: the RPC that needs room.
            charged: address or principal that the other one has to be charged to; None for any.
            limit: the limit that has been reached.
        """
        endable = [
            rpc for rpc in self._rpcs if charged in (None, *rpc.charged_to) and self._may_be_ended_for(newcomer, rpc)
        ]
        if not endable:
            raise self._full(limit)
        last = max(endable, key=lambda rpc: self._num_by_client[rpc.peer])
        self._free(last)  # now, because its end takes a while
        error: DomainError = ClientStalledError("the request had not arrived when its place was needed")
        if self._patience_seconds is None:
            error = CallTooLongError("the call's place is needed by a client with fewer calls: go on in another call")
        last.end(error)

    def _may_be_ended_for(self, newcomer: OpenRpc, rpc: OpenRpc) -> bool:
        has_more = self._num_by_client[rpc.peer] > self._num_by_client[newcomer.peer] + 1
        if self._patience_seconds is None:
            own, other = self._num_charged[newcomer.charged_to[0]], self._num_charged[rpc.charged_to[0]]
            return has_more or other > own + 1
        latest = time.monotonic() - self._patience_seconds
        return rpc.unsent_since is not None and (has_more or rpc.unsent_since < latest)

    def _full(self, limit: str) -> OverLimitError:
        text = f"expected at most {limit}, which is how many there are"
        return OverLimitError(f"{text}: try again when some have ended", reason=Reason.TOO_MANY_CALLS)

    def _free(self, rpc: OpenRpc) -> None:
        if rpc in self._rpcs:
            del self._rpcs[rpc]
            self._count(rpc, -1)

    def _count(self, rpc: OpenRpc, change: int) -> None:
        for charged in rpc.charged_to:
            self._num_charged[charged] += change
            if not self._num_charged[charged]:
                del self._num_charged[charged]
        self._num_by_client[rpc.peer] += change
        if not self._num_by_client[rpc.peer]:
            del self._num_by_client[rpc.peer]
