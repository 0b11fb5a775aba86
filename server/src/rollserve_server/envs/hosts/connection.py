"""Connections to hosts: streams of bytes on which each message follows its length."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from typing import TypeVar

from google.protobuf.message import DecodeError

from rollserve_wire.errors import mismatch
from rollserve_wire.rows.v1 import rows_pb2 as pb

__all__ = ["HostConnection", "HostError", "HostLostError", "receive", "send"]

_M = TypeVar("_M", pb.Hello, pb.Response)

_PROTOCOL_VERSION = 1
_LENGTH = struct.Struct("<I")
_MAX_HEAD_BYTES = 1 << 20
"""Largest message before the rows are made."""


class HostError(Exception):
    """A host answered something invalid, or refused what it was asked."""


class HostLostError(HostError):
    """The connection to a host is gone."""


class HostConnection:
    """A connection to a host that has said hello.

    Attributes:
        hello: what the host has said of itself.
        max_bytes: largest message that the host may send.
    """

    def __init__(self, stream: socket.socket, end: Callable[[], object]) -> None:
        """Read the host's hello.

        Args:
            stream: the stream, which is closed with the connection.
            end: ends what the connection needs, once it is closed.

        Raises:
            HostError: the host is gone, or speaks another version of the protocol.
        """
        self._stream, self._end = stream, end
        self._number = 0
        self.max_bytes = _MAX_HEAD_BYTES
        try:
            self.hello = self._parsed(pb.Hello)
            if self.hello.protocol_version != _PROTOCOL_VERSION:
                text = mismatch(f"version {_PROTOCOL_VERSION} of the step protocol", self.hello.protocol_version)
                raise HostError(f"hello: {text}")
        except BaseException:
            self.close()
            raise

    def ask(self, request: pb.Request, kind: str) -> pb.Response:
        """Send a request, and return its answer, of this kind.

        Raises:
            HostError: the host refuses the request, or answers something else.
            HostLostError: the connection is gone, or cannot be used any more.
        """
        self._number += 1
        request.number = self._number
        send(self._stream, request.SerializeToString())
        response = self._parsed(pb.Response)
        if response.number != request.number:
            raise HostLostError(f"number: {mismatch(f'{request.number}, as of the request', response.number)}")
        found = response.WhichOneof("content")
        if found == "refusal":
            raise HostError(f"the host refuses: {response.refusal.text}")
        if found != kind:
            raise HostLostError(f"response: {mismatch(kind, found)}")
        return response

    def close(self) -> None:
        """Close the connection. May be called more than once."""
        self._stream.close()
        self._end()

    def _parsed(self, kind: type[_M]) -> _M:
        try:
            return kind.FromString(receive(self._stream, self.max_bytes))
        except DecodeError as error:
            raise HostLostError(f"message: {mismatch(f'a {kind.__name__}', 'other bytes')}") from error


def send(stream: socket.socket, message: bytes) -> None:
    """Send a message behind its length; raise HostLostError if the connection is lost."""
    try:
        stream.sendall(_LENGTH.pack(len(message)) + message)
    except OSError as error:
        raise HostLostError(f"the connection to the host is lost: {error}") from error


def receive(stream: socket.socket, max_bytes: int) -> bytes:
    """Return the next message; raise HostLostError for a larger one, or if the connection is lost."""
    (length,) = _LENGTH.unpack(_exactly(stream, _LENGTH.size))
    if length > max_bytes:
        raise HostLostError(f"message: {mismatch(f'at most {max_bytes} bytes', length)}")
    return bytes(_exactly(stream, length))


def _exactly(stream: socket.socket, size: int) -> bytearray:
    data, filled = bytearray(size), 0
    view = memoryview(data)
    while filled < size:
        try:
            count = stream.recv_into(view[filled:])
        except OSError as error:
            raise HostLostError(f"the connection to the host is lost: {error}") from error
        if not count:
            raise HostLostError("the host has closed the connection")
        filled += count
    return data
