"""Arguments of a connection, from which a sampler is made, and made again where it is unpickled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import grpc
import grpc.aio

from rollserve._calls.channel import channel_options
from rollserve._calls.requests import Reception
from rollserve._checks import check_connection, check_flag
from rollserve.memory import reuse_message_memory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollserve.options import Compression

__all__ = ["Connection"]


@dataclass(frozen=True)
class Connection:
    """Arguments of `rollserve.connect`.

    Attributes:
        target: address of the server.
        sampler: name of the sampler; empty for the default one.
        timeout: seconds without an answer or any progress.
        reception: forms in which results are received.
        shared: whether calls sample with whatever other clients have set.
    """

    target: str
    sampler: str
    timeout: float
    reception: Reception
    shared: bool

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
    ) -> Self:
        """Check the arguments of `rollserve.connect`, and return the connection; raises as `connect`."""
        check_connection(target, sampler, timeout, max_message_bytes)
        check_flag("shared", shared)
        return cls(target, sampler, timeout, Reception.of(max_message_bytes, compression, shared_memory), shared)

    def __str__(self) -> str:
        return f"{self.target!r}, sampler {self.sampler!r}" if self.sampler else repr(self.target)

    def channel(self) -> grpc.Channel:
        """Return a new channel. It connects with its first call."""
        reuse_message_memory()
        return grpc.insecure_channel(self.target, options=channel_options(self.reception.max_message_bytes))

    def async_channel(self) -> grpc.aio.Channel:
        """Return a new channel for the running event loop. It connects with its first call."""
        reuse_message_memory()
        return grpc.aio.insecure_channel(self.target, options=channel_options(self.reception.max_message_bytes))
