"""How this process gets and gives back memory."""

from __future__ import annotations

import ctypes

__all__ = ["hold_on_to_memory"]

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8
"""glibc's names for what `mallopt` sets."""
_LARGEST = 2**31 - 1
_MMAP_BYTES = (1 << 30, 32 << 20)
"""What older versions of glibc take at most is the second."""
_TOP_PAD_BYTES = 64 << 20


def hold_on_to_memory() -> bool:
    """Has this process keep the memory that it frees, and use it again, instead of giving it back to the system.

    Getting large pieces of memory anew for message after message, and clearing them, takes as long as to move the data.
    With this, calls with large results take about half the CPU time; but the process stays as large as it was when it
    used most. It holds for the whole process, until its end. To be called at its beginning.

    Returns:
        Whether it could be done: only the C library of most Linux systems, glibc, allows it.
    """
    try:
        library = ctypes.CDLL(None)
        mallopt = library.mallopt if hasattr(library, "gnu_get_libc_version") else None
    except (AttributeError, OSError, TypeError):
        return False
    if mallopt is None:
        return False
    is_set = any(mallopt(_MMAP_THRESHOLD, num_bytes) for num_bytes in _MMAP_BYTES)
    rest = ((_TRIM_THRESHOLD, _LARGEST), (_TOP_PAD, _TOP_PAD_BYTES), (_ARENA_MAX, 1))
    return all([is_set, *(bool(mallopt(name, value)) for name, value in rest)])
