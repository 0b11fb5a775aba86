"""Logs of events as lines of JSON, which survive the death of their writer."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["EventLog", "read_events"]


class EventLog:
    """A file of events with times of the machine's monotonic clock, which all processes share."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, event: str, **fields: Any) -> None:
        """Append one event with its time."""
        line = json.dumps({"time": round(time.monotonic(), 4), "event": event, **fields})
        os.write(self._descriptor, line.encode() + b"\n")

    def close(self) -> None:
        os.close(self._descriptor)


def read_events(*paths: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of logs, one log after the other, without incomplete lines."""
    for path in paths:
        with path.open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    yield json.loads(line)
