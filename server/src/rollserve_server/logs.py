"""The form of the server's log, set up by `serving.process`: one line for each event, as text or as JSON."""

from __future__ import annotations

import logging
import sys
from typing import Any

from pythonjsonlogger.json import JsonFormatter

__all__ = ["configure_logging"]

_STANDARD_FIELDS = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class _LineFormatter(logging.Formatter):
    """A format of lines such as `2025-01-01 12:00:00 INFO    serving workers=2`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%Y-%m-%d %H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's name
        fields = {
            key: value
            for key, value in record.__dict__.items()
            if key not in _STANDARD_FIELDS and not key.startswith("_")
        }
        return " ".join([super().formatMessage(record), *(f"{k}={_shown(v)}" for k, v in fields.items())])


def configure_logging(level: str, as_json: bool) -> None:
    """Send all log events to stderr.

    Args:
        level: least important level of the server's own events, such as `INFO`; other packages log from `WARNING` on.
        as_json: whether each line is a JSON object.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonFormatter(
            "{asctime}{levelname}{name}{message}",
            style="{",
            rename_fields={"asctime": "time", "levelname": "level", "name": "logger", "message": "event"},
            datefmt="%Y-%m-%dT%H:%M:%S%z",
        )
        if as_json
        else _LineFormatter()
    )
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("rollserve_server").setLevel(level)


def _shown(value: Any) -> str:
    text = str(value)
    return text if text and text.isprintable() and " " not in text else repr(text)
