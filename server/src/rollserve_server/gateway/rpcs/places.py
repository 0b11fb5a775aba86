"""Places for open RPCs: bounded in all and by peer, with room made of RPCs whose requests do not arrive."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Generator
from typing import TYPE_CHECKING

from rollserve import Reason
from rollserve_server.errors import ClientStalledError, OverLimitError

if TYPE_CHECKING:
    from rollserve_server.gateway.rpcs.open_rpc import OpenRpc

__all__ = ["Places"]


class Places:
    """A bounded number of places for open RPCs, and a bounded number of them for each address and each principal.

    When there is none left, an RPC whose request has not arrived is ended to make room: of the client with the most
    places, the one that has had its place longest. So clients that send nothing take no more than an equal share. A
    client is a principal, or else a connection.
    """

    def __init__(self, max_rpcs: int, max_peer_rpcs: int, patience_seconds: float) -> None:
        """Start with all places free.

        Args:
            max_rpcs: number of places.
            max_peer_rpcs: number of places of one address, and of one principal.
            patience_seconds: how long a request may take to arrive when a client with as many places needs room.
        """
        self._max_rpcs = max_rpcs
        self._max_peer_rpcs = max_peer_rpcs
        self._patience_seconds = patience_seconds
        self._rpcs: dict[OpenRpc, None] = {}  # in order of arrival
        self._num_charged: Counter[str] = Counter()
        self._num_by_client: Counter[str] = Counter()

    @contextlib.contextmanager
    def held_by(self, rpc: OpenRpc) -> Generator[None, None, None]:
        """Give an RPC a place for the block.

        Raises:
            OverLimitError: there is none, for all clients together, or for the RPC's address or principal.
        """
        full = next((each for each in rpc.charged_to if self._num_charged[each] >= self._max_peer_rpcs), None)
        if full is not None:
            self._make_room(rpc, full, f"{self._max_peer_rpcs} RPCs of an address or a principal at a time")
        elif len(self._rpcs) >= self._max_rpcs:
            self._make_room(rpc, None, f"{self._max_rpcs} RPCs at a time")
        self._rpcs[rpc] = None
        self._count(rpc, 1)
        try:
            yield
        finally:
            self._free(rpc)

    def _make_room(self, newcomer: OpenRpc, charged: str | None, limit: str) -> None:
        """End an RPC whose request has not arrived; raise OverLimitError if none may be ended.

        Args:
            newcomer: the RPC that needs room.
            charged: address or principal that the other one has to be charged to; None for any.
            limit: the limit that has been reached.
        """
        num_own, latest = self._num_by_client[newcomer.peer], time.monotonic() - self._patience_seconds
        endable = [
            rpc
            for rpc in self._rpcs
            if charged in (None, *rpc.charged_to)
            and rpc.unsent_since is not None
            and (self._num_by_client[rpc.peer] > num_own + 1 or rpc.unsent_since < latest)
        ]
        if not endable:
            text = f"expected at most {limit}, which is how many there are"
            raise OverLimitError(f"{text}: try again when some have ended", reason=Reason.TOO_MANY_CALLS)
        last = max(endable, key=lambda rpc: self._num_by_client[rpc.peer])
        self._free(last)  # now, because its end takes a while
        last.end(ClientStalledError("the request had not arrived when its place was needed"))

    def _free(self, rpc: OpenRpc) -> None:
        if rpc in self._rpcs:
            del self._rpcs[rpc]
            self._count(rpc, -1)

    def _count(self, rpc: OpenRpc, change: int) -> None:
        charges = [(self._num_charged, charged) for charged in rpc.charged_to]
        for counter, key in (*charges, (self._num_by_client, rpc.peer)):
            counter[key] += change
            if not counter[key]:
                del counter[key]
