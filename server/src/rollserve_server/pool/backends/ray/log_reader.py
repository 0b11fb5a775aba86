"""Reading what the processes of the server's own cluster print, by Ray's reader, in a thread instead of a process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ray._private.log_monitor import LogMonitor, is_proc_alive

__all__ = ["LogReader"]

_log = logging.getLogger(__name__)
_SECONDS = 0.2
"""Time between two looks at the files."""


class LogReader:
    """Reads the files that workers and Ray print to, until it is closed."""

    def __init__(self, folder: Path, on_lines: Callable[[Mapping[str, Any]], object]) -> None:
        """Begin to read.

        Args:
            folder: folder of the files.
            on_lines: called with new lines of a process, as Ray has them.
        """
        publisher: Any = _Publisher(on_lines)
        self._monitor: Any = LogMonitor("127.0.0.1", str(folder), publisher, is_proc_alive)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="worker output", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Read what has been printed by now, and stop."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._ended.wait(_SECONDS)
            try:
                self._monitor.update_log_filenames()
                self._monitor.open_closed_files()
                while self._monitor.check_log_files_and_publish_updates():
                    pass
            except Exception:  # whatever it is: later lines are read
                _log.exception("worker output not read")


class _Publisher:
    """What the reader takes for Ray's control service, which it hands lines to."""

    def __init__(self, on_lines: Callable[[Mapping[str, Any]], object]) -> None:
        self.publish_logs = on_lines
