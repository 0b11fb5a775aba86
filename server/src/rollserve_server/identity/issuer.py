"""Keys of an issuer of signed tokens: found by OpenID Connect Discovery, fetched in threads, and kept."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import urllib.request
from collections.abc import Callable, Sequence
from http.client import HTTPException
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.parse import urlsplit

from rollserve_server.errors import InvalidValueError
from rollserve_server.futures import in_background, in_own_thread
from rollserve_server.settings import is_loopback, is_safe_url

if TYPE_CHECKING:
    import jwt

__all__ = ["IssuerKeys"]

_log = logging.getLogger(__name__)

_DISCOVERY = "/.well-known/openid-configuration"
FRESH_SECONDS, RETRY_SECONDS = 300.0, 10.0
"""Age from which keys are fetched again, which is how long a key counts that its issuer has withdrawn; and the least
time between two fetches, whatever strangers send."""
_MAX_AGE_SECONDS = 86_400.0
"""How long keys count whose issuer cannot be reached. Then it may have withdrawn them."""
_WAIT_SECONDS = 10.0
"""How long a token with an unknown key waits for a fetch."""
_TIMEOUT_SECONDS = 5.0
_MAX_BYTES = 1 << 20


class IssuerKeys:
    """The keys of an issuer. A failed fetch is logged, and the known keys stay in use for a day."""

    def __init__(
        self, issuer: str, parse: Callable[[str], Sequence[jwt.PyJWK]], on_fetch: Callable[[str], object]
    ) -> None:
        """Start without keys.

        Args:
            issuer: URL of the issuer.
            parse: returns the keys of a JSON Web Key Set; raises InvalidValueError.
            on_fetch: called after each fetch with `fetched` or `failed`.
        """
        self._issuer = issuer
        self._parse = parse
        self._on_fetch = on_fetch
        self._keys: Sequence[jwt.PyJWK] = ()
        self._fetched = self._tried = -float("inf")
        self._fetching: asyncio.Task[None] | None = None
        self._error = ""

    def current(self) -> Sequence[jwt.PyJWK]:
        """Return the known keys; none once they are too old."""
        return self._keys if time.monotonic() - self._fetched < _MAX_AGE_SECONDS else ()

    async def refresh(self, *, is_known: bool) -> None:
        """Begin to fetch the keys if they are old or a key is unknown; wait for that if a key is unknown."""
        now = time.monotonic()
        is_due = not is_known or now - self._fetched > FRESH_SECONDS
        if is_due and self._fetching is None and now - self._tried >= RETRY_SECONDS:
            self._tried = now
            self._fetching = in_background(self._fetch())
        if not is_known and self._fetching is not None:
            await asyncio.wait({self._fetching}, timeout=_WAIT_SECONDS)

    async def _fetch(self) -> None:
        try:
            self._keys = await in_own_thread(self._found)
        except Exception as error:  # whatever an issuer answers
            if self._error != str(error):
                self._error = str(error)
                _log.error("keys not fetched", extra={"jwt_issuer": self._issuer, "error": self._error})
            self._on_fetch("failed")
        else:
            if self._error or self._fetched < 0:
                _log.info("keys fetched", extra={"jwt_issuer": self._issuer, "keys": len(self._keys)})
            self._fetched, self._error = time.monotonic(), ""
            self._on_fetch("fetched")
        finally:
            self._fetching = None

    def _found(self) -> Sequence[jwt.PyJWK]:
        """Return the keys that the issuer shows now.

        Raises:
            InvalidValueError: the answers are not its own, not safe or not understood.
            OSError: it does not answer.
        """
        described = json.loads(_read(self._issuer.rstrip("/") + _DISCOVERY))
        if not isinstance(described, dict) or described.get("issuer") != self._issuer:
            got = described.get("issuer") if isinstance(described, dict) else type(described).__name__
            raise InvalidValueError.of("issuer", expected=repr(self._issuer), got=repr(got))
        address = described.get("jwks_uri")
        if not isinstance(address, str) or not is_safe_url(address):
            raise InvalidValueError.of("jwks_uri", expected="https://…", got=repr(address))
        return self._parse(_read(address))


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Follow no redirect: it could lead anywhere in the server's network."""


def _read(address: str) -> str:
    """Return the text at a URL."""
    # A proxy that the environment names has a loopback address of its own.
    proxies = [urllib.request.ProxyHandler({})] if is_loopback(urlsplit(address).hostname or "") else []
    opener = urllib.request.build_opener(_NoRedirects, *proxies)
    data, until = b"", time.monotonic() + _WAIT_SECONDS
    try:
        with opener.open(address, timeout=_TIMEOUT_SECONDS) as response:
            while part := response.read1(_MAX_BYTES):
                data += part
                if len(data) > _MAX_BYTES or time.monotonic() > until:
                    expected = f"at most {_MAX_BYTES} bytes within {_WAIT_SECONDS:g} s"
                    raise InvalidValueError.of(address, expected=expected, got="more, or a slower answer")
    except (OSError, HTTPException) as error:
        if isinstance(error, HTTPError):
            error.close()
        raise OSError(f"{address}: {error}") from None
    return data.decode()
