"""How this process gets and gives back memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

__all__ = ["give_back_memory", "hold_on_to_memory"]

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8
"""glibc's names for what `mallopt` sets."""
_LARGEST = 2**31 - 1
_MMAP_BYTES = (1 << 30, 32 << 20)
"""What older versions of glibc take at most is the second."""
_TOP_PAD_BYTES = 64 << 20
_LEAST_BYTES = 256 << 10
"""What is smaller is not worth a call of the system each time."""


def hold_on_to_memory() -> bool:
    """Has this process keep the memory that it frees, and use it again, instead of giving it back to the system.

    Getting large pieces of memory anew for message after message, and clearing them, takes as long as to move the data.
    With this, calls with large results take about half the CPU time; but the process stays as large as it was when it
    used most. It holds for the whole process, until its end. To be called at its beginning.

    Returns:
        Whether it could be done: only the C library of most Linux systems, glibc, allows it.
    """
    mallopt = _mallopt()
    if mallopt is None:
        return False
    is_set = any(mallopt(_MMAP_THRESHOLD, num_bytes) for num_bytes in _MMAP_BYTES)
    rest = ((_TRIM_THRESHOLD, _LARGEST), (_TOP_PAD, _TOP_PAD_BYTES), (_ARENA_MAX, 1))
    return all([is_set, *(bool(mallopt(name, value)) for name, value in rest)])


def give_back_memory() -> bool:
    """Has this process give the memory that it frees back to the system, but for pieces under 256 KiB amid others.

    By itself, glibc keeps more and more: only what is larger than anything freed before, up to 32 MiB, comes from the
    system piece by piece, and up to twice as much stays free at the end of each heap. It holds for the whole process,
    until its end. To be called at its beginning.

    Returns:
        Whether it could be done: only glibc allows it, and needs it.
    """
    mallopt = _mallopt()
    if mallopt is None:
        return False
    are_set = [mallopt(name, _LEAST_BYTES) for name in (_MMAP_THRESHOLD, _TRIM_THRESHOLD)]
    return all(are_set)


def _mallopt() -> Callable[[int, int], int] | None:
    """The function of glibc that sets how memory is given; None where there is another C library."""
    try:
        library = ctypes.CDLL(None)
        return library.mallopt if hasattr(library, "gnu_get_libc_version") else None
    except (AttributeError, OSError, TypeError):
        return None
