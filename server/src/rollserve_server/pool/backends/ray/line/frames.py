"""Frames: what travels on a line, in both directions."""

from __future__ import annotations

import enum
import os
import socket
import struct
from typing import NamedTuple

__all__ = ["HEAD", "NUMBER", "Kind", "Place", "is_of_same_user", "packed_head", "unpacked_head"]

HEAD = struct.Struct("<B7sQ")
"""Head of a frame: its kind, the form of frames, and the number of bytes that follow."""
NUMBER = struct.Struct("<Q")
"""Content of a frame that names a region."""

_FORM = b"line-1\n"
_MAX_BYTES = 8 << 30
"""Bound of a frame's content, beyond which its head is not one."""
_CREDENTIALS = struct.Struct("3i")  # process, user, group


class Kind(enum.IntEnum):
    """What a frame holds, and which way it goes."""

    CALL = 1
    """To the worker: a pickled call."""
    RELEASE = 2
    """To the worker: the number of a region that the server has read, and that may be written again."""
    DROP = 3
    """To the worker: the number of a region that the server has read, and that may be freed."""
    ANSWER = 4
    """To the server: a pickled outcome and a pickled `Place`, or None if the result is within the outcome."""
    ANSWER_IN_NEW_REGION = 5
    """The same; the file descriptor of the region, which is new, travels with the frame."""


class Place(NamedTuple):
    """Where a result is.

    Attributes:
        number: number of the region; regions have other numbers than all before them.
        num_bytes: size of the result, which begins where the region does.
        is_kept: whether the region may be kept for later results.
    """

    number: int
    num_bytes: int
    is_kept: bool


def packed_head(kind: Kind, num_bytes: int) -> bytes:
    """Return the head of a frame."""
    return HEAD.pack(kind, _FORM, num_bytes)


def unpacked_head(data: bytes | bytearray) -> tuple[Kind, int]:
    """Return the kind of the frame that begins here, and the size of its content.

    Raises:
        ValueError: no frame of this form begins here.
    """
    kind, form, num_bytes = HEAD.unpack_from(data)
    if form != _FORM or num_bytes > _MAX_BYTES:
        raise ValueError(f"line: expected a frame of the form {_FORM!r}, got {form!r} with {num_bytes} bytes")
    return Kind(kind), num_bytes


def is_of_same_user(connection: socket.socket) -> bool:
    """Return whether the process at the other end of a Unix socket runs as the user of this process."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(credentials)
    return bool(user == os.geteuid())
