"""Peers that connections and RPCs are charged to, and places for RPCs when all are taken."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from support import raises

from rollserve import Reason
from rollserve_server.errors import ClientStalledError, OverLimitError
from rollserve_server.gateway.access import Access
from rollserve_server.gateway.connections import charged_host, charged_peer
from rollserve_server.gateway.rpcs.open_rpc import OpenRpc
from rollserve_server.gateway.rpcs.places import Places
from rollserve_server.identity import Authentication, Grant, Principal, Scope


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:10.0.0.1:4711", "10.0.0.1"),
        ("ipv6:%5B::1%5D:4711", "::/64"),
        ("ipv6:%5B2001:db8:1:2:3:4:5:6%5D:4711", "2001:db8:1:2::/64"),
        ("ipv6:%5B::ffff:10.0.0.1%5D:4711", "10.0.0.1"),
        ("ipv6:%5Bfe80::1%25eth0%5D:4711", "fe80::/64"),
        ("unix:/run/socket", ""),
    ],
)
def test_connections_are_charged_to_their_address(peer: str, host: str) -> None:
    assert charged_peer(peer) == host


def test_sockets_are_charged_as_their_connections() -> None:
    assert [charged_host(host) for host in ("10.0.0.1", "::ffff:10.0.0.1", "fe80::1%2")] == [
        "10.0.0.1",
        "10.0.0.1",
        "fe80::/64",
    ]


class _Context:
    """gRPC's side of an RPC."""

    def __init__(self, connection: str) -> None:
        self._connection = connection

    def peer(self) -> str:
        return f"ipv4:{self._connection}"

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def auth_context(self) -> dict[str, list[bytes]]:
        return {}


class _Knowing(Authentication):
    """Authentication that takes every client for one principal."""

    def __init__(self, name: str) -> None:
        self.is_required = True
        self._principal = Principal(name, frozenset(map(Grant, Scope)))

    def principal_of(self, *_: object) -> Principal:
        return self._principal


def _access(name: str) -> Access:
    return Access(_Knowing(name), "default", {"UpdateAgent": Scope.AGENT_WRITE})


class Rpcs:
    """RPCs that hold places until they are ended."""

    def __init__(self, max_rpcs: int, max_peer_rpcs: int, patience_seconds: float = 60) -> None:
        self.ends: list[tuple[str, str]] = []
        self._places = Places("RPCs", max_rpcs, max_of_peer=max_peer_rpcs, patience_seconds=patience_seconds)
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self, connection: str, name: str, *, has_request: bool = False, principal: str = "") -> None:
        """Open an RPC; when it ends, `ends` has its name and the reason."""
        rpc = OpenRpc("UpdateAgent", _Context(connection), 60)
        if principal:
            rpc.admit(_access(principal))
        if has_request:
            rpc.unsent_since = None

        async def hold() -> None:
            try:
                async with rpc.endable():
                    with self._places.held_by(rpc):
                        await asyncio.sleep(60)
            except (ClientStalledError, OverLimitError) as error:
                self.ends.append((name, error.reason))

        self._tasks.append(asyncio.create_task(hold()))
        await asyncio.sleep(0.02)

    async def close(self) -> None:
        """End all RPCs."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def test_room_is_made_of_the_connection_with_most_unsent_requests() -> None:
    rpcs = Rpcs(max_rpcs=4, max_peer_rpcs=4)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(rpcs.close)
        await rpcs.open("10.0.0.1:1", "sent", has_request=True)
        await rpcs.open("10.0.0.1:1", "first")
        await rpcs.open("10.0.0.1:1", "second")
        await rpcs.open("10.0.0.1:2", "third")
        await rpcs.open("10.0.0.1:3", "newcomer")
        assert rpcs.ends == [("first", Reason.CLIENT_STALLED)]
        # No other connection has more places than this one would have, and its own requests are not late.
        await rpcs.open("10.0.0.1:2", "too many")
        assert rpcs.ends[1:] == [("too many", Reason.TOO_MANY_CALLS)]


async def test_room_is_made_of_requests_that_are_late() -> None:
    rpcs = Rpcs(max_rpcs=2, max_peer_rpcs=2, patience_seconds=0.1)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(rpcs.close)
        await rpcs.open("10.0.0.1:1", "late")
        await asyncio.sleep(0.2)
        await rpcs.open("10.0.0.1:2", "new")
        await rpcs.open("10.0.0.1:3", "newcomer")
        assert rpcs.ends == [("late", Reason.CLIENT_STALLED)]


async def test_peer_takes_no_places_over_its_limit() -> None:
    rpcs = Rpcs(max_rpcs=4, max_peer_rpcs=2)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(rpcs.close)
        for number in range(3):
            await rpcs.open(f"10.0.0.1:{number}", f"{number}", has_request=True)
        await rpcs.open("10.0.0.2:1", "stranger", has_request=True)
        assert rpcs.ends == [("2", Reason.TOO_MANY_CALLS)]


async def test_principal_takes_no_places_over_the_limit_of_a_peer() -> None:
    rpcs = Rpcs(max_rpcs=4, max_peer_rpcs=2)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(rpcs.close)
        for number in range(3):
            await rpcs.open(f"10.0.0.{number}:1", f"{number}", has_request=True, principal="alice")
        await rpcs.open("10.0.0.1:1", "stranger", has_request=True, principal="bob")
        assert rpcs.ends == [("2", Reason.TOO_MANY_CALLS)]


async def test_freed_places_are_given_again() -> None:
    places = Places("RPCs", 1, patience_seconds=60)
    for _ in range(2):
        first, second = (OpenRpc("UpdateAgent", _Context("10.0.0.1:1"), 60) for _ in range(2))
        with (
            places.held_by(first),
            raises(OverLimitError, reason=Reason.TOO_MANY_CALLS),
            places.held_by(second),
        ):
            pass
