"""Arguments of a connection, from which a sampler is made, and made again where it is unpickled; its gRPC channel."""

from __future__ import annotations

import functools
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import grpc
import grpc.aio

from rollserve._calls.contexts import find_server
from rollserve._calls.credentials import TlsFiles, TokenSource, check_encrypted, tls_of
from rollserve._calls.gateways import Address, AsyncSwitchingChannel, Gateways, SwitchingChannel
from rollserve._calls.requests import Reception
from rollserve._calls.rpc_errors import is_loopback
from rollserve_wire.checks import check_connection, check_flag
from rollserve_wire.errors import mismatch
from rollserve_wire.memory import reuse_message_memory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollserve.options import Compression

__all__ = ["Connection"]


_GRPC_MESSAGE_BYTES = 4 << 20  # gRPC's own limit for messages that clients receive
_KEEPALIVE_MILLISECONDS = 20_000  # silence after which the server is pinged, while calls run
_KEEPALIVE_TIMEOUT_MILLISECONDS = 10_000  # time to answer before the connection is closed; the next call opens another

_FIRST_RECONNECT_MILLISECONDS, _MAX_RECONNECT_MILLISECONDS = 100, 500  # pauses between attempts to connect


@dataclass(frozen=True)
class Connection:
    """Arguments of `rollserve.connect`.

    Attributes:
        target: address of the server, or of several gateways.
        sampler: name of the sampler; empty for the default one.
        timeout: seconds without an answer or any progress.
        reception: forms in which results are received.
        shared: whether calls sample with whatever other clients have set.
        tls: what the connection is encrypted with; None for no encryption.
        token: what the client proves with who it is; None for nothing.
    """

    target: str
    sampler: str
    timeout: float
    reception: Reception
    shared: bool
    tls: TlsFiles | grpc.ChannelCredentials | None
    token: TokenSource | None = None

    @classmethod
    def of(
        cls,
        target: str,
        sampler: str,
        timeout: float,
        max_message_bytes: int | None,
        compression: Compression | Sequence[Compression] | None,
        shared_memory: bool,
        shared: bool,
        credentials: grpc.ChannelCredentials | None,
        ca: str | os.PathLike[str] | None,
        cert: str | os.PathLike[str] | None,
        key: str | os.PathLike[str] | None,
        token: str | None,
        token_file: str | os.PathLike[str] | None,
    ) -> Self:
        """Check the arguments of `rollserve.connect`, and return the connection; raises as `connect`."""
        server = find_server(target)
        check_connection(server.address, sampler, timeout, max_message_bytes)
        check_flag("shared", shared)
        reception = Reception.of(max_message_bytes, compression, shared_memory)
        tls = tls_of(credentials, {"ca": ca, "cert": cert, "key": key}, server.files)
        source = TokenSource.of(token, token_file, server.token)
        if source is not None and tls is None:
            check_encrypted(server.address)
        return cls(server.address, sampler, timeout, reception, shared, tls, source)

    def __getstate__(self) -> dict[str, object]:
        if isinstance(self.tls, grpc.ChannelCredentials):
            expected, hint = "files in a sampler that is pickled", "give ca, cert and key to connect"
            raise TypeError(f"credentials: {mismatch(expected, 'credentials of gRPC', hint)}")
        return self.__dict__

    def __str__(self) -> str:
        return f"{self.target!r}, sampler {self.sampler!r}" if self.sampler else repr(self.target)

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the metadata of a call; raise InvalidArgumentError if the token cannot be read."""
        token = () if self.token is None else (("authorization", f"Bearer {self.token.read()}"),)
        sampler = (("rollserve-sampler", self.sampler),) if self.sampler else ()
        return (*token, *sampler, *trace_metadata())

    def channel(self, gateways: Gateways) -> Any:
        """Return a new channel, as `grpc.Channel`. It connects with its first call.

        Args:
            gateways: gateways that the target stands for.
        """
        if gateways.are_several:
            return SwitchingChannel(gateways, functools.partial(self._open, grpc))
        return self._open(grpc, Address(self.target))

    def async_channel(self, gateways: Gateways) -> Any:
        """Return a new channel for the event loop of its first call, as `grpc.aio.Channel`; see `channel`."""
        return AsyncSwitchingChannel(gateways, functools.partial(self._open, grpc.aio))

    def _open(self, module: Any, address: Address) -> Any:
        """Return a new channel to one gateway.

        Args:
            module: `grpc` or `grpc.aio`.
            address: address of the gateway.
        """
        reuse_message_memory()
        options: list[tuple[str, int | str]] = [*channel_options(self.reception.max_message_bytes)]
        if is_loopback(address.target) or (self.token is not None and self.tls is None):
            # A proxy does not reach this machine's loopback, and would read a token that is not encrypted.
            options.append(("grpc.enable_http_proxy", 0))
        if address.name:
            options += [("grpc.default_authority", address.name), ("grpc.ssl_target_name_override", address.name)]
        credentials = self._credentials()
        if credentials is None:
            return module.insecure_channel(address.target, options=options)
        return module.secure_channel(address.target, credentials, options=options)

    def _credentials(self) -> grpc.ChannelCredentials | None:
        return self.tls.credentials() if isinstance(self.tls, TlsFiles) else self.tls


def channel_options(max_message_bytes: int | None) -> list[tuple[str, int]]:
    """Return the options of a channel that receives messages up to a size, or up to gRPC's default for None."""
    options = [
        ("SingleThreadedUnaryStream", 1),
        # Channels with the same options share connections, and the pause after a lost one: a new client would fail.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.keepalive_time_ms", _KEEPALIVE_MILLISECONDS),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MILLISECONDS),
        ("grpc.http2.ping_timeout_ms", _KEEPALIVE_TIMEOUT_MILLISECONDS),
        # A server that is back should be noticed soon; gRPC's own pauses grow to two minutes.
        ("grpc.initial_reconnect_backoff_ms", _FIRST_RECONNECT_MILLISECONDS),
        ("grpc.max_reconnect_backoff_ms", _MAX_RECONNECT_MILLISECONDS),
        ("grpc.http2.max_pings_without_data", 0),  # no limit, because a long update brings no data
    ]
    if max_message_bytes is not None:
        # Messages that are not streamed may have gRPC's usual size.
        options.append(("grpc.max_receive_message_length", max(max_message_bytes, _GRPC_MESSAGE_BYTES)))
    return options


def trace_metadata() -> tuple[tuple[str, str], ...]:
    """Return the metadata that names the current span of OpenTelemetry; nothing in programs that do not use it."""
    if "opentelemetry.trace" not in sys.modules:
        return ()
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    metadata: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(metadata)
    return tuple(metadata.items())
