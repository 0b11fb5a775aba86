"""What expires in the files of the settings: certificates, tokens and keys, and the log lines about them."""

from __future__ import annotations

import datetime
import logging
import time
from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["Expiry", "ExpiryLog"]

_log = logging.getLogger(__name__)

_NOTICE = datetime.timedelta(days=30)
_REPEAT_SECONDS = 86400.0


class Expiry(NamedTuple):
    """When something expires.

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
