"""Ends a server with the process that has started it, however that ends."""

from __future__ import annotations

import os
import signal
import threading
import time

__all__ = ["end_with_parent"]

_INTERVAL_SECONDS = 0.5


def end_with_parent(process_id: int) -> None:
    """Sends this process SIGTERM once its parent is not that process, or not any more.

    Linux can do that by itself, but when the parent's thread ends that has started it, which may be sooner.
    """
    threading.Thread(target=_watch, args=(process_id,), name="parent", daemon=True).start()


def _watch(process_id: int) -> None:
    while os.getppid() == process_id:
        time.sleep(_INTERVAL_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
