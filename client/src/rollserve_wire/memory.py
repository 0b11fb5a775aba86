"""Settings of this process's memory allocator."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np

__all__ = ["give_back_memory", "hold_on_to_memory", "reuse_message_memory"]

# glibc's numbers for the options of `mallopt`.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8
_MAX_THRESHOLD = 2**31 - 1
_HELD_BYTES = (1 << 30, 32 << 20)  # older versions of glibc accept at most the second
_TOP_PAD_BYTES = 64 << 20
_MIN_GIVEN_BACK_BYTES = 256 << 10  # smaller pieces are not worth a system call each
_MAX_LEARNED_BYTES = (32 << 20) - (64 << 10)  # glibc learns nothing from pieces of more than 32 MiB, with their heads


def hold_on_to_memory() -> bool:
    """Make this process keep the memory that it frees and use it again, instead of returning it to the system.

    Getting memory for each large result, and clearing it, takes time. With this setting, calls with large results take
    about a fifth less CPU time, but the process stays as large as it ever was. The setting holds for the whole process
    until its end; call it when the process starts.

    Returns:
        Whether the setting was made: only glibc, the C library of most Linux systems, has it.
    """
    mallopt = _mallopt()
    if mallopt is None:
        return False
    is_set = any(mallopt(_MMAP_THRESHOLD, num_bytes) for num_bytes in _HELD_BYTES)
    others = ((_TRIM_THRESHOLD, _MAX_THRESHOLD), (_TOP_PAD, _TOP_PAD_BYTES), (_ARENA_MAX, 1))
    return all([is_set, *(bool(mallopt(option, value)) for option, value in others)])


def give_back_memory() -> bool:
    """Make this process return the memory that it frees to the system, except for pieces below 256 KiB amid others.

    By default, glibc keeps more and more memory: it requests only pieces from the system one by one that are larger
    than any piece freed before, up to 32 MiB, and leaves up to twice as much unused at the end of each heap. The
    setting holds for the whole process until its end; call it when the process starts.

    Returns:
        Whether the setting was made: only glibc has it, and needs it.
    """
    mallopt = _mallopt()
    if mallopt is None:
        return False
    are_set = [mallopt(option, _MIN_GIVEN_BACK_BYTES) for option in (_MMAP_THRESHOLD, _TRIM_THRESHOLD)]
    return all(are_set)


def reuse_message_memory() -> None:
    """Make glibc use the memory of messages again, up to 64 MiB, instead of returning it to the system.

    By default, glibc takes pieces from the heap only up to the size of the largest piece freed before, at most 32 MiB,
    and keeps twice that size of the heap's end. One piece that is freed at once, without ever being written, takes both
    bounds to where they would get with large arrays anyway. A message of some megabytes is held three times while gRPC
    reads it, and the memory of each would be new. Settings of the allocator, such as the other functions', stay.
    """
    np.empty(_MAX_LEARNED_BYTES, np.uint8)


def _mallopt() -> Callable[[int, int], int] | None:
    """Return glibc's function for settings of its allocator; None with another C library."""
    try:
        library = ctypes.CDLL(None)
        return library.mallopt if hasattr(library, "gnu_get_libc_version") else None
    except (AttributeError, OSError, TypeError):
        return None
