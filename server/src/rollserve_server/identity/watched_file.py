"""Files whose contents are in use, and are read again when they change."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from rollserve_server.errors import InvalidValueError

__all__ = ["WatchedFile", "read_text"]

_log = logging.getLogger(__name__)

_T = TypeVar("_T")
_Stamp = tuple[int, int, int, int]

_SETTLED_SECONDS = 1.0
"""Age from which a file's times tell whether it has changed; clocks of file systems tick up to 10 ms apart."""


class WatchedFile(Generic[_T]):
    """A file whose contents are used as they are at present.

    New contents that cannot be used are logged once, and the previous ones stay in use.
    """

    def __init__(self, setting: str, path: Path, parse: Callable[[str], _T]) -> None:
        """Read the file.

        Args:
            setting: name of the setting that names the file.
            path: the file.
            parse: returns what is used of the file's text; raises InvalidValueError.

        Raises:
            InvalidValueError: the file cannot be read or used.
        """
        self._setting = setting
        self._path = path
        self._parse = parse
        self._stamp = _stamp(path)
        self._text = read_text(setting, path)
        self._value = parse(self._text)
        self._error = ""

    def current(self) -> _T:
        """Return what the file says now."""
        stamp = _stamp(self._path)
        if stamp is None or stamp != self._stamp:
            self._stamp = stamp
            self._read_again()
        return self._value

    def _read_again(self) -> None:
        try:
            text = read_text(self._setting, self._path)
            if text != self._text:
                self._text = text
                self._value = self._parse(text)
                _log.info("file read again", extra={self._setting: self._path})
            self._error = ""
        except InvalidValueError as error:
            if self._error != str(error):
                self._error = str(error)
                _log.error("new contents not used", extra={"error": self._error})


def read_text(setting: str, path: Path) -> str:
    """Return the text of a file that a setting names; raise InvalidValueError if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        hint = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise InvalidValueError.of(setting, expected="a readable file", got=path, hint=hint) from None


def _stamp(path: Path) -> _Stamp | None:
    """Return what changes with a file's contents; None if that is not certain."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    is_settled = abs(time.time() - max(found.st_mtime, found.st_ctime)) > _SETTLED_SECONDS
    return (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino) if is_settled else None
