"""Errors of clients that do not prove who they are. No text tells more than a legitimate client needs."""

from __future__ import annotations

from rollserve_server.errors import UnauthenticatedError
from rollserve_wire.reasons import Reason

__all__ = ["expired", "invalid", "missing"]

_FIELD = "authorization"  # key of the metadata


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
