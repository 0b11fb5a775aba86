"""Issuers of signed tokens that the server asks for their keys."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from certificates import LIGHT, Certificates
from issuers import AUDIENCE, Issuer, key_set, signed
from support import raises, server_environment

import rollserve
from rollserve import Reason
from rollserve_server.errors import UnauthenticatedError
from rollserve_server.identity import Authentication, Principal, Scope
from rollserve_server.local import local_server
from rollserve_server.settings import IdentitySettings

RETRY = "rollserve_server.identity.issuer.RETRY_SECONDS"


class Asked:
    """A server's view of an issuer.

    Attributes:
        issuer: the issuer.
        fetches: number of fetches by their outcome.
    """

    def __init__(self, issuer: Issuer) -> None:
        self.issuer = issuer
        self.fetches: Counter[str] = Counter()
        settings = IdentitySettings(jwt_issuer=issuer.url, jwt_audience=AUDIENCE)
        self._authentication = Authentication(settings, lambda outcome: self.fetches.update([outcome]))

    def token(self, key: str = "rsa", **changes: Any) -> str:
        return signed(key, **{"iss": self.issuer.url, **changes})

    async def principal(self, token: str) -> Principal:
        """Return whom a token proves."""
        authorization = [f"Bearer {token}"]
        await self._authentication.refresh(authorization)
        return self._authentication.principal_of(authorization, {})

    async def refuses(self, token: str) -> None:
        with raises(UnauthenticatedError, reason=Reason.TOKEN_INVALID):
            await self.principal(token)


@pytest.fixture
async def asked() -> AsyncIterator[Asked]:
    with Issuer("rsa") as issuer:
        yield Asked(issuer)


async def test_keys_are_fetched_once_whatever_strangers_send(asked: Asked) -> None:
    assert (await asked.principal(asked.token())).has(Scope.SAMPLE, "default")
    await asyncio.gather(*(asked.refuses(asked.token("other")) for _ in range(20)))
    await asked.refuses(asked.token("other", kid="rsa"))
    await asked.refuses(asked.token(iss="https://other.lab"))
    await asked.refuses("a.b.c")
    assert asked.issuer.num_reads == 1


async def test_rotated_keys_count_and_withdrawn_ones_do_not(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    await asked.principal(asked.token())
    asked.issuer.keys = key_set("ec")
    await asked.refuses(asked.token("ec"))  # too soon after the first fetch
    monkeypatch.setattr(RETRY, 0.0)
    assert (await asked.principal(asked.token("ec"))).name == "alice"
    await asked.refuses(asked.token())


async def test_known_keys_count_while_the_issuer_is_down(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RETRY, 0.0)
    await asked.principal(asked.token())
    asked.issuer.close()
    await asked.refuses(asked.token("ec"))
    await asked.principal(asked.token())
    assert asked.fetches == {"fetched": 1, "failed": 1}
    monkeypatch.setattr("rollserve_server.identity.issuer._MAX_AGE_SECONDS", 0.0)
    await asked.refuses(asked.token())


async def test_slow_issuer_holds_up_unknown_keys_alone(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RETRY, 0.0)
    await asked.principal(asked.token())
    asked.issuer.keys = key_set("rsa", "ec")
    asked.issuer.answers.clear()
    waiting = asyncio.create_task(asked.principal(asked.token("ec")))
    for _ in range(10):
        await asked.principal(asked.token())
    assert not waiting.done()
    asked.issuer.answers.set()
    assert (await waiting).name == "alice"


@pytest.mark.parametrize(
    ("description", "keys", "quotes"),
    [
        ({"issuer": "https://other.lab"}, "", "https://other.lab"),
        ({"jwks_uri": "http://keys.lab/"}, "", "jwks_uri: expected https"),
        ({"jwks_uri": "file:///etc/passwd"}, "", "jwks_uri: expected https"),
        ({"jwks_uri": None}, "", "jwks_uri: expected https"),
        ({}, json.dumps({"keys": []}), "expected a public key"),
        ({}, "{", "expected a JSON Web Key Set"),
        ({}, " " * (1 << 21), "expected at most 1048576 bytes"),
    ],
    ids=["another issuer", "plain HTTP", "file", "no keys", "empty keys", "no JSON", "too large"],
)
async def test_answer_of_an_issuer_is_refused(
    asked: Asked, caplog: pytest.LogCaptureFixture, description: dict[str, Any], keys: str, quotes: str
) -> None:
    asked.issuer.description = description
    asked.issuer.keys = keys or asked.issuer.keys
    with caplog.at_level(logging.ERROR):
        await asked.refuses(asked.token())
    assert quotes in str(vars(caplog.records[0])["error"])
    assert asked.fetches == {"failed": 1}


async def test_redirect_is_not_followed(asked: Asked) -> None:
    asked.issuer.description = {"jwks_uri": asked.issuer.url.removesuffix("realm") + "moved"}
    await asked.refuses(asked.token())
    assert asked.issuer.num_reads == 0


def serving_tls(files: Certificates) -> ssl.SSLContext:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(files.path("server"), files.path("server-key"))
    return tls


def test_server_maps_a_claim_of_an_issuer_with_tls(tmp_path: Path) -> None:
    files = Certificates(tmp_path / "certificates")
    scopes = tmp_path / "scopes"
    scopes.write_text(json.dumps({"claim": ["realm", "roles"], "scopes": {"users": ["status"], "admins": ["*"]}}))
    with Issuer("rsa", tls=serving_tls(files)) as issuer:
        options = ("--jwt-issuer", issuer.url, "--jwt-audience", AUDIENCE, "--jwt-scopes", str(scopes))
        environment = {**server_environment(), "SSL_CERT_FILE": str(files.path("ca"))}
        with local_server(*LIGHT, *options, log=tmp_path / "log", environment=environment) as server:

            def ask(roles: object) -> None:
                token = signed(iss=issuer.url, scope="*", realm={"roles": roles})
                with rollserve.connect(server.address, token=token) as sampler:
                    sampler.status()
                    sampler.update_agent(rollserve.RandomAgent())

            ask(["admins", "others"])
            for roles in (["users"], "others", None, [3], {"admins": 1}):
                with raises(rollserve.AccessError, reason=Reason.SCOPE_MISSING):
                    ask(roles)
            scopes.write_text(json.dumps({"claim": "realm", "scopes": {"users": ["stat"]}}))
            ask("admins")
        assert "new contents not used" in (tmp_path / "log").read_text()


async def test_issuer_with_a_certificate_of_an_unknown_authority_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Issuer("rsa", tls=serving_tls(Certificates(tmp_path / "certificates"))) as issuer:
        asked = Asked(issuer)
        await asked.refuses(asked.token())
    assert "CERTIFICATE_VERIFY_FAILED" in str(vars(caplog.records[0])["error"])
    assert issuer.num_reads == 0
