"""A channel to whichever of several gateways calls go to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollserve._calls.gateways import Address, Gateways

__all__ = ["AsyncSwitchingChannel", "SwitchingChannel"]


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
