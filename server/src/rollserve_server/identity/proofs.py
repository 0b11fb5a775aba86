"""Parts of all proofs of an identity: files that are read again when they change, their expiry, and refusals.

No text of a refusal tells more than a legitimate client needs.
"""

from __future__ import annotations

import datetime
import logging
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from rollserve_server.errors import InvalidValueError, UnauthenticatedError
from rollserve_server.yaml_texts import parse_yaml
from rollserve_wire.reasons import Reason

__all__ = ["Expiry", "ExpiryLog", "WatchedFile", "expired", "invalid", "missing", "read_text", "read_yaml"]

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_Stamp = tuple[int, int, int, int]
_SETTLED_SECONDS = 1.0
"""Age from which a file's times tell whether it has changed; clocks of file systems tick up to 10 ms apart."""
_NOTICE = datetime.timedelta(days=30)
_REPEAT_SECONDS = 86400.0
_FIELD = "authorization"  # key of the metadata


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


def read_yaml(setting: str, text: str) -> object:
    """Return what a text of YAML holds; raise InvalidValueError if it is none."""
    try:
        return parse_yaml(text)
    except Exception as error:  # not only PyYAML's own errors: dates, numbers and depth raise Python's
        raise InvalidValueError.of(setting, expected="YAML", got=" ".join(str(error).split())) from None


def _stamp(path: Path) -> _Stamp | None:
    """Return what changes with a file's contents; None if that is not certain."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    is_settled = abs(time.time() - max(found.st_mtime, found.st_ctime)) > _SETTLED_SECONDS
    return (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino) if is_settled else None


class Expiry(NamedTuple):
    """Expiry of a certificate, token or key.

    Attributes:
        setting: name of the setting that names its file.
        kind: `certificate`, `token` or `key`.
        name: whose it is.
        expires: until when it is valid.
    """

    setting: str
    kind: str
    name: str
    expires: datetime.datetime


class ExpiryLog:
    """Logs what expires within 30 days, or has expired: each once a day."""

    def __init__(self) -> None:
        self._logged: dict[tuple[Expiry, bool], float] = {}

    def note(self, expiries: Iterable[Expiry]) -> None:
        """Log what is due of the expiries. May be called in any thread."""
        now, moment = datetime.datetime.now(datetime.UTC), time.monotonic()
        logged = {key: since for key, since in self._logged.copy().items() if moment - since < _REPEAT_SECONDS}
        for each in expiries:
            has_expired = each.expires <= now
            if each.expires - now < _NOTICE and (each, has_expired) not in logged:
                logged[each, has_expired] = moment
                text = f"{each.kind} has expired" if has_expired else f"{each.kind} expires soon"
                _log.warning(text, extra={each.setting: each.name, "expires": each.expires.isoformat()})
        self._logged = logged


def missing(expected: str) -> UnauthenticatedError:
    """Return the error of a client that shows nothing."""
    return UnauthenticatedError.of(_FIELD, expected=expected, got="none", reason=Reason.TOKEN_MISSING)


def invalid() -> UnauthenticatedError:
    """Return the error of a client whose token the server does not accept, for whatever reason."""
    expected, got = "a token that the server accepts", "another one"
    return UnauthenticatedError.of(_FIELD, expected=expected, got=got, reason=Reason.TOKEN_INVALID)


def expired() -> UnauthenticatedError:
    """Return the error of a client whose token was valid once."""
    expected, got = "a valid token", "one that has expired"
    return UnauthenticatedError.of(_FIELD, expected=expected, got=got, reason=Reason.TOKEN_EXPIRED)
