"""Signed tokens (JWT): which ones the server accepts, and whom they prove."""

from __future__ import annotations

import base64
import datetime
import hashlib
import hmac
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from certificates import serving
from issuers import AUDIENCE, ISSUER, key_set, signed
from principals import Tokens
from support import raises

import rollserve
from rollserve import Reason
from rollserve_server.local import LocalServer


def with_shared_secret() -> str:
    """Return a token signed with the public key as if it were a secret of HMAC."""
    public = json.loads(key_set("rsa"))["keys"][0]["n"].encode()
    claims = json.loads(base64.urlsafe_b64decode(signed().split(".")[1] + "=="))
    parts = [json.dumps(each).encode() for each in ({"alg": "HS256", "kid": "rsa"}, claims)]
    text = b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in parts)
    mac = hmac.new(public, text, hashlib.sha256).digest()
    return (text + b"." + base64.urlsafe_b64encode(mac).rstrip(b"=")).decode()


def unsigned() -> str:
    _, claims, _ = signed().split(".")
    header = base64.urlsafe_b64encode(b'{"alg":"none","kid":"rsa"}').decode().rstrip("=")
    return f"{header}.{claims}."


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Tokens:
    return Tokens(tmp_path_factory.mktemp("tokens") / "tokens.json")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "jwks.json"
    path.write_text(key_set("rsa", "ec", "ed"))
    return path


@pytest.fixture(scope="module")
def asking(keys: Path, tokens: Tokens, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    options = ("--jwt-jwks", str(keys), "--jwt-issuer", ISSUER, "--jwt-audience", AUDIENCE, *tokens.options)
    with serving(tmp_path_factory.mktemp("asking"), *options, "--jwt-leeway-seconds", "120") as running:
        yield running


def ask(server: LocalServer, token: str) -> None:
    with rollserve.connect(server.address, token=token) as sampler:
        sampler.status()


@pytest.mark.parametrize(
    "token",
    [
        signed(),
        signed("ec"),
        signed("ed"),
        signed(algorithm="PS512"),
        signed(aud=["another", AUDIENCE]),
        signed(scope=["status"]),
    ],
    ids=["RS256", "ES256", "EdDSA", "PS512", "audiences", "list of scopes"],
)
def test_valid_token_is_accepted(asking: LocalServer, token: str) -> None:
    ask(asking, token)


def test_token_is_accepted_within_the_leeway(asking: LocalServer) -> None:
    ask(asking, signed(exp=datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=1)))


def test_scopes_of_the_claim_count(asking: LocalServer) -> None:
    with rollserve.connect(asking.address, token=signed()) as sampler:
        sampler.status()
        with raises(rollserve.AccessError, reason=Reason.SCOPE_MISSING, quotes=("agent:write", "alice")):
            sampler.update_agent(rollserve.RandomAgent())
    for nothing in (None, "", "openid profile", 3, {"status": 1}, [3, "*@"]):
        with raises(rollserve.AccessError, reason=Reason.SCOPE_MISSING):
            ask(asking, signed(scope=nothing))


NOW = datetime.datetime.now(datetime.UTC)
INVALID = {
    "another issuer": signed(iss="https://other.lab"),
    "another audience": signed(aud="other"),
    "no audience": signed(aud=None),
    "no issuer": signed(iss=None),
    "no expiry": signed(exp=None),
    "no subject": signed(sub=None),
    "empty subject": signed(sub=""),
    "anonymous": signed(sub="anonymous"),
    "subject with a line break": signed(sub="alice\nbob"),
    "too early": signed(nbf=NOW + datetime.timedelta(hours=1)),
    "unknown key": signed("other"),
    "another's name of the key": signed("other", kid="rsa"),
    "no name of the key": signed(kid=None),
    "shared secret": with_shared_secret(),
    "unsigned": unsigned(),
    "without signature": signed().rpartition(".")[0] + ".",
    "other kind of key": signed("ec", kid="rsa"),
    "noise": "a.b.c",
    "unknown opaque token": "rst_" + "x" * 43,
    "expired, of another key": signed("other", kid="rsa", exp=NOW - datetime.timedelta(hours=1)),
}


@pytest.mark.parametrize("token", INVALID.values(), ids=INVALID)
def test_invalid_token_is_refused(asking: LocalServer, token: str) -> None:
    with raises(rollserve.AccessError, reason=Reason.TOKEN_INVALID) as caught:
        ask(asking, token)
    assert token not in str(caught.value)


def test_expired_token_is_refused_as_expired(asking: LocalServer) -> None:
    with raises(rollserve.AccessError, reason=Reason.TOKEN_EXPIRED):
        ask(asking, signed(exp=NOW - datetime.timedelta(minutes=5)))


def test_tokens_of_the_file_work_beside_signed_ones(asking: LocalServer, tokens: Tokens) -> None:
    ask(asking, tokens.create("bob", "status"))


def test_new_keys_count_at_once(asking: LocalServer, keys: Path) -> None:
    before = keys.read_text()
    try:
        keys.write_text(key_set("other"))
        ask(asking, signed("other"))
        ask(asking, signed("other", kid=None))  # the only key
        with raises(rollserve.AccessError, reason=Reason.TOKEN_INVALID):
            ask(asking, signed())
        secret = {"kty": "oct", "k": "AAAA", "kid": "rsa"}
        unusable = (json.dumps({"keys": [secret]}), "{}", '{"keys": 3}', '{"keys": ["x"]}', '{"keys":' + "[" * 100_000)
        for contents in unusable:
            keys.write_text(contents)
            ask(asking, signed("other"))
    finally:
        keys.write_text(before)


UNKNOWN_KEYS: list[Any] = [
    {"kty": "OKP", "crv": "Ed999", "x": "AA", "kid": "new"},
    {"kty": "RSA", "alg": "RSA-OAEP", "n": "AQAB", "e": "AQAB"},
    {"kty": "EC", "kid": 3},
    {"kty": ["RSA"]},
    {"kty": "RSA", "use": ["sig"]},
    "key",
    None,
]


def test_keys_of_unknown_kinds_are_ignored_beside_others(asking: LocalServer, keys: Path) -> None:
    """An issuer adds keys for algorithms that a server may not know yet."""
    before = keys.read_text()
    ask(asking, signed())
    try:
        known = json.loads(key_set("other"))["keys"]
        keys.write_text(json.dumps({"keys": [*UNKNOWN_KEYS, *known]}))
        ask(asking, signed("other"))
        with raises(rollserve.AccessError, reason=Reason.TOKEN_INVALID):
            ask(asking, signed())  # not by the previous contents
    finally:
        keys.write_text(before)
