"""End of a server with the process that started it, whichever way that process ends."""

from __future__ import annotations

import os
import signal
import threading
import time

__all__ = ["end_with_parent"]

_INTERVAL_SECONDS = 0.5


def end_with_parent(process_id: int) -> None:
    """Send SIGTERM to this process as soon as its parent is not the given process, or no longer.

    Linux can do that by itself (`PR_SET_PDEATHSIG`), but already when the parent's thread ends that started this
    process.

    Args:
        process_id: id of the parent process.
    """
    threading.Thread(target=_watch, args=(process_id,), name="parent", daemon=True).start()


def _watch(process_id: int) -> None:
    while os.getppid() == process_id:
        time.sleep(_INTERVAL_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
