"""Checks of this machine before Ray starts: Ray itself reports a lack of room late, and without the cause."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

from rollserve_wire.errors import mismatch

__all__ = ["check_room", "hint_of"]

_MIN_FREE_BYTES = 16 << 20
"""Room for Ray's logs, without which it does not start."""
_ELSEWHERE = "name another folder by the environment variable RAY_TMPDIR"
_HINTS = {
    errno.EAGAIN: "is there a limit on processes and threads, such as pids of the container or ulimit -u?",
    errno.EMFILE: "is there a limit on open files, such as ulimit -n?",
    errno.ENFILE: "is there a limit on open files, such as ulimit -n?",
    errno.ENOMEM: "is there a limit on memory?",
}


def check_room() -> None:
    """Check the folder that Ray writes to.

    Raises:
        OSError: the folder cannot be written to, has less than 16 MiB of room, or a name that Ray cannot write.
    """
    # Ray chooses the folder in the same way.
    folder = Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp", "ray")  # noqa: S108
    advice = f"make room there, or {_ELSEWHERE}"
    if not str(folder).isascii():
        raise _mismatch(folder, "a path of ASCII characters", repr(str(folder)), _ELSEWHERE)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        room = os.statvfs(folder)
    except OSError as error:
        raise OSError(f"Ray's folder {folder} cannot be written to: {error.strerror}: {advice}") from None
    free_bytes = room.f_bavail * room.f_frsize
    if free_bytes < _MIN_FREE_BYTES:
        raise _mismatch(folder, f"at least {_MIN_FREE_BYTES} free bytes", str(free_bytes), advice)
    if room.f_files and not room.f_favail:
        raise _mismatch(folder, "room for more files", "none", advice)


def hint_of(error: Exception) -> str:
    """Return the likely cause of an error at Ray's start, in parentheses; empty if none is known."""
    hint = _HINTS.get(getattr(error, "errno", None) or 0)
    limit_bytes, _ = resource.getrlimit(resource.RLIMIT_AS)
    if hint is None and limit_bytes != resource.RLIM_INFINITY:
        hint = f"addresses are limited to {limit_bytes} bytes, ulimit -v; Ray reserves far more than it uses"
    return f" ({hint})" if hint else ""


def _mismatch(folder: Path, expected: str, got: str, advice: str) -> OSError:
    return OSError(f"Ray's folder {folder}: {mismatch(expected, got, advice)}")
