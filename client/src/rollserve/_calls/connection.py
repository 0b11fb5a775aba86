"""Arguments of a connection, from which a sampler is made, and made again where it is unpickled."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import grpc
import grpc.aio

from rollserve._calls.channel import channel_options
from rollserve._calls.contexts import find_server
from rollserve._calls.gateways import Address, Gateways
from rollserve._calls.proxies import is_loopback
from rollserve._calls.requests import Reception
from rollserve._calls.switching_channel import AsyncSwitchingChannel, SwitchingChannel
from rollserve._calls.tls import TlsFiles, tls_of
from rollserve._calls.token import TokenSource, check_encrypted
from rollserve._calls.trace_context import trace_metadata
from rollserve_wire.checks import check_connection, check_flag
from rollserve_wire.errors import mismatch
from rollserve_wire.memory import reuse_message_memory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollserve.options import Compression

__all__ = ["Connection"]


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
        """Return a new channel for the running event loop, as `grpc.aio.Channel`; see `channel`."""
        if gateways.are_several:
            return AsyncSwitchingChannel(gateways, functools.partial(self._open, grpc.aio))
        return self._open(grpc.aio, Address(self.target))

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
