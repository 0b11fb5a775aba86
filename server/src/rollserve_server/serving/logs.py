"""The server's log on standard error: its format, and what else becomes an event."""

from __future__ import annotations

import datetime
import faulthandler
import logging
import sys
import threading
import warnings
from typing import TYPE_CHECKING, Any

from pythonjsonlogger.json import JsonFormatter

from rollserve_server.request_context import RequestIdFilter
from rollserve_server.serving.captured_output import CapturingHandler

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["configure_logging", "fields_of"]

_log = logging.getLogger(__name__)
_STANDARD_FIELDS = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


def configure_logging(level: str, *, as_json: bool) -> None:
    """Send all log events to standard error, warnings of Python and uncaught errors included.

    Args:
        level: least important level of the server's own events, such as `INFO`; other packages log from `WARNING` on.
        as_json: whether each line is a JSON object, those included that libraries and child processes print.
    """
    handler = CapturingHandler() if as_json else logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if as_json else _LineFormatter())
    handler.addFilter(RequestIdFilter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("rollserve_server").setLevel(level)
    faulthandler.enable(2)  # the descriptor, whatever `sys.stderr` is
    warnings.showwarning = _log_warning
    sys.excepthook = _log_uncaught
    threading.excepthook = _log_uncaught_in_thread
    sys.unraisablehook = _log_unraisable


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return what an event has beyond its time, level, logger and text."""
    return {
        name: value
        for name, value in record.__dict__.items()
        if name not in _STANDARD_FIELDS and not name.startswith("_")
    }


def _time_of(record: logging.LogRecord, separator: str) -> str:
    """Return when an event happened, to the millisecond and with the offset of the time zone."""
    moment = datetime.datetime.fromtimestamp(record.created).astimezone()
    return moment.isoformat(separator, "milliseconds")


class _LineFormatter(logging.Formatter):
    """A format of lines such as `2025-01-01 12:00:00.000+00:00 INFO    serving workers=2`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802  # logging's name
        return _time_of(record, " ")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's name
        shown = (f"{name}={_shown(value)}" for name, value in fields_of(record).items())
        return " ".join([super().formatMessage(record), *shown])


class _JsonFormatter(JsonFormatter):
    """A format of lines that are JSON objects."""

    def __init__(self) -> None:
        super().__init__(
            "{asctime}{levelname}{name}{message}",
            style="{",
            rename_fields={"asctime": "time", "levelname": "level", "name": "logger", "message": "event"},
        )

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802  # logging's name
        return _time_of(record, "T")


def _shown(value: Any) -> str:
    text = str(value)
    return text if text and text.isprintable() and " " not in text else repr(text)


def _log_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: object = None,
    line: str | None = None,
) -> None:
    fields = {"category": category.__name__, "text": str(message), "place": f"{filename}:{lineno}"}
    _log.warning("Python warning", extra=fields)


def _log_uncaught(kind: type[BaseException], error: BaseException, traceback: TracebackType | None, /) -> None:
    _log.critical("uncaught error", exc_info=(kind, error, traceback))


def _log_uncaught_in_thread(arguments: threading.ExceptHookArgs, /) -> None:
    if arguments.exc_value is not None and not isinstance(arguments.exc_value, SystemExit):
        name = arguments.thread.name if arguments.thread is not None else ""
        _log.error(
            "thread failed",
            exc_info=(arguments.exc_type, arguments.exc_value, arguments.exc_traceback),
            extra={"thread_name": name},
        )


def _log_unraisable(unraisable: sys.UnraisableHookArgs, /) -> None:
    if unraisable.exc_value is not None:
        _log.error(
            "error ignored",
            exc_info=(unraisable.exc_type, unraisable.exc_value, unraisable.exc_traceback),
            extra={"raised_in": f"{unraisable.err_msg or ''} {unraisable.object!r}".strip()},
        )
