"""Whether this machine has room for a cluster of Ray: what Ray says of it comes late, and names no cause."""

from __future__ import annotations

import errno
import os
from pathlib import Path

__all__ = ["check_room", "hint_of", "small_store"]

_LEAST_FREE_BYTES = 16 << 20
"""Ray writes logs, and does not start without them."""
_SPILLED_FROM = 0.8
"""The part of the object store from which on Ray writes what is there to the disk."""
_HINTS = {
    errno.EAGAIN: "is there a limit on processes and threads, such as pids of the container or ulimit -u?",
    errno.EMFILE: "is there a limit on open files, such as ulimit -n?",
    errno.ENFILE: "is there a limit on open files, such as ulimit -n?",
    errno.ENOMEM: "is there a limit on memory?",
}


def check_room() -> None:
    """Looks at the folder that Ray is going to write to.

    Raises:
        OSError: it cannot be written to, or has hardly any room.
    """
    # As Ray looks for it.
    folder = Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp", "ray")  # noqa: S108
    advice = "make room there, or name another folder by the environment variable RAY_TMPDIR"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        room = os.statvfs(folder)
    except OSError as error:
        raise OSError(f"Ray's folder {folder} cannot be written to: {error.strerror}: {advice}") from None
    free_bytes = room.f_bavail * room.f_frsize
    if free_bytes < _LEAST_FREE_BYTES or (room.f_files and not room.f_favail):
        what = f"{free_bytes} bytes" if free_bytes < _LEAST_FREE_BYTES else "room for no file"
        raise OSError(f"Ray's folder {folder} has {what}, at least {_LEAST_FREE_BYTES} bytes were expected: {advice}")


def hint_of(error: Exception) -> str:
    """What may be behind an error of Ray's start, in parentheses; empty if nothing is known."""
    hint = _HINTS.get(getattr(error, "errno", None) or 0)
    return f" ({hint})" if hint else ""


def small_store(store_bytes: int, results_bytes: int) -> dict[str, int] | None:
    """What to warn of if results may not fit into the object store; None if they do.

    Args:
        store_bytes: the size of the store.
        results_bytes: how much of all calls may be on its way at a time.
    """
    if results_bytes <= _SPILLED_FROM * store_bytes:
        return None
    return {"object_store_bytes": store_bytes, "results_bytes": results_bytes}
