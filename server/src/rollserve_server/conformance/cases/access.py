"""Cases about TLS and tokens."""

from __future__ import annotations

from rollserve_server.conformance.cases.case import Case, Json
from rollserve_server.conformance.cases.parts import RANDOM, env, samples

__all__ = ["access_cases"]

_STATUS: Json = {"do": "status"}


def access_cases() -> list[Case]:
    """Return the cases."""
    return [
        Case(
            "tls-and-token",
            "TLS by an authority, and a token",
            [env(), RANDOM, samples(20), _STATUS],
            secure=True,
        ),
        Case(
            "tls-other-authority",
            "a server whose certificate another authority has signed",
            [_STATUS],
            {"ca": "@other_ca"},
            secure=True,
            client_errors={0: {"reason": "TLS_FAILED"}},
        ),
        *(
            Case(
                name,
                about,
                [operation],
                {"token": token},
                secure=True,
                expected={0: {"error": {"kind": "access", "reason": name.upper().replace("-", "_")}}},
            )
            for name, about, operation, token in (
                ("token-missing", "no token", _STATUS, None),
                ("token-invalid", "a wrong token", _STATUS, "rst_wrong"),
                ("token-expired", "a token that has expired", _STATUS, "@expired_token"),
                ("scope-missing", "a token that permits less", RANDOM, "@limited_token"),
            )
        ),
    ]
