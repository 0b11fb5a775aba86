"""Gateways that one target stands for, and the search for the gateway that has the sampler.

The calls themselves are the questions: a call that reaches a gateway without the sampler, or none at all, is made again
at the next gateway. Later calls begin at the gateway that was found last.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc

from rollserve._calls.rpc_errors import reason_of, status_of
from rollserve_wire.checks import DNS_SCHEME, SCHEMES
from rollserve_wire.errors import UnavailableError, mismatch
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Sequence


__all__ = ["ELSEWHERE", "Address", "AsyncSwitchingChannel", "Gateways", "Search", "SwitchingChannel"]


ELSEWHERE = ("", Reason.SERVER_STOPPING, Reason.SAMPLER_TAKEN, Reason.JOURNAL_LOST)
"""Reasons of UNAVAILABLE that another gateway need not have, nor the next one at the same address."""


class Address(NamedTuple):
    """Address of one gateway.

    Attributes:
        target: the address, as gRPC takes it.
        name: host that the gateway's certificate has to name, if it is not the one in the target; else empty.
    """

    target: str
    name: str = ""


class Gateways:
    """Gateways that may have a sampler, and the one that calls go to. Thread-safe.

    Attributes:
        are_several: whether the target can stand for several: a list of addresses with commas between them, or a
            `dns:///` name, which stands for all of its addresses.
        turn: number of times that calls have gone on to the next gateway.
    """

    def __init__(self, target: str) -> None:
        self.are_several = target.startswith(DNS_SCHEME) or ("," in target and not target.startswith(SCHEMES))
        self.turn = 0
        self._target = target
        self._addresses: Sequence[Address] = ()
        self._is_stale = True
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._addresses)

    def current(self) -> Address:
        """Return the address of the gateway that calls go to.

        The name is resolved in the caller's thread, with the first call and after each round of all gateways.

        Raises:
            UnavailableError: the name of the target cannot be resolved.
        """
        with self._lock:
            if self._is_stale:
                self._addresses, self._is_stale = self._resolved(), False
            return self._addresses[self.turn % len(self._addresses)]

    def go_on(self, turn: int) -> None:
        """Go on to the next gateway, unless another call has done so since a turn."""
        with self._lock:
            if turn != self.turn:
                return
            self.turn += 1
            # The old addresses still count for calls that are in the middle of their round.
            self._is_stale = self._is_stale or self.turn % len(self._addresses) == 0

    def _resolved(self) -> Sequence[Address]:
        """Return the addresses that the target stands for now."""
        if not self.are_several:
            return [Address(self._target)]
        if not self._target.startswith(DNS_SCHEME):
            return [Address(part.strip(" ")) for part in self._target.split(",")]
        host, _, port = self._target.removeprefix(DNS_SCHEME).rpartition(":")
        host = host.strip("[]")
        try:
            found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
        except OSError as error:
            text = (
                f"target: {mismatch('a name that can be resolved', repr(self._target), error.strerror or str(error))}"
            )
            raise UnavailableError(text, code="UNAVAILABLE", field="target") from None
        addresses = [
            Address(f"ipv6:[{place[0]}]:{port}" if family == socket.AF_INET6 else f"ipv4:{place[0]}:{port}", host)
            for family, _, _, _, place in found
        ]
        return list(dict.fromkeys(addresses))


class Search:
    """Search of one call for the gateway that has the sampler."""

    def __init__(self, gateways: Gateways) -> None:
        """Begin at the gateway that calls go to now."""
        self._gateways = gateways
        self._turn = gateways.turn
        self._num_tried = 0
        self._unavailable: grpc.RpcError | None = None

    def goes_on(self, error: grpc.RpcError) -> bool:
        """Whether to make the call again at once, because a gateway that was not tried yet may have the sampler.

        Args:
            error: how the last attempt ended.
        """
        if not self._gateways.are_several or not _may_be_elsewhere(error):
            return False
        num_gateways = len(self._gateways)
        self._gateways.go_on(self._turn)
        self._turn = self._gateways.turn
        if status_of(error) is grpc.StatusCode.UNAVAILABLE:
            self._unavailable = error
        self._num_tried += 1
        if self._num_tried < num_gateways:
            return True
        self._num_tried = 0
        return False

    def is_missing(self, error: grpc.RpcError) -> bool:
        """Whether an error says that the sampler is at none of several gateways, so that one may take it over."""
        return self._gateways.are_several and reason_of(error) == Reason.SAMPLER_NOT_FOUND

    def unavailable(self) -> grpc.RpcError | None:
        """Return the error of a gateway that was out of reach and may have the sampler; None if all have answered."""
        return self._unavailable


def _may_be_elsewhere(error: grpc.RpcError) -> bool:
    reason = reason_of(error)
    if status_of(error) is grpc.StatusCode.UNAVAILABLE:
        return reason in ELSEWHERE
    return reason == Reason.SAMPLER_NOT_FOUND


class _Switch:
    """Channels to gateways by their addresses, opened with their first calls."""

    def __init__(self, gateways: Gateways, open_channel: Callable[[Address], Any]) -> None:
        self._gateways = gateways
        self._open_channel = open_channel
        self._channels: dict[Address, Any] = {}
        self._is_closed = False

    def unary_unary(self, *arguments: Any, **options: Any) -> Callable[..., Any]:
        """Return a method with one response, as `grpc.Channel.unary_unary`."""
        return self._method("unary_unary", arguments, options)

    def unary_stream(self, *arguments: Any, **options: Any) -> Callable[..., Any]:
        """Return a method with a stream of responses, as `grpc.Channel.unary_stream`."""
        return self._method("unary_stream", arguments, options)

    def stream_stream(self, *arguments: Any, **options: Any) -> Callable[..., Any]:
        """Return a method with a stream of requests and of responses, as `grpc.Channel.stream_stream`."""
        return self._method("stream_stream", arguments, options)

    def _method(self, kind: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Callable[..., Any]:
        """Return a method that looks for the channel with each call."""
        methods: dict[Any, Callable[..., Any]] = {}

        def call(*call_arguments: Any, **call_options: Any) -> Any:
            channel = self._current()
            method = methods.get(channel)
            if method is None:
                method = methods[channel] = getattr(channel, kind)(*arguments, **options)
            return method(*call_arguments, **call_options)

        return call

    def _current(self) -> Any:
        if self._is_closed:
            raise ValueError("the channel is closed")  # as gRPC's own
        address = self._gateways.current()
        # Two threads can both open a channel; the second one is dropped, and has not connected.
        return self._channels.get(address) or self._channels.setdefault(address, self._open_channel(address))


class SwitchingChannel(_Switch):
    """A channel for calls that block."""

    def close(self) -> None:
        """Close all channels."""
        self._is_closed = True
        for channel in list(self._channels.values()):
            channel.close()


class AsyncSwitchingChannel(_Switch):
    """A channel for asyncio."""

    async def close(self) -> None:
        """Close all channels."""
        self._is_closed = True
        for channel in list(self._channels.values()):
            await channel.close()
