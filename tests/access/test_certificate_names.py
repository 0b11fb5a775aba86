"""Names in clients' certificates as principals, and what they and others get to see."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from certificates import Certificates, serving
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
from principals import Tokens
from raw_calls import soon
from support import raises

import rollserve
from rollserve import Reason
from rollserve_server.local import LocalServer

ODD = ("2026-13-45: [status]", "[" * 3000, "!!int x: [status]")
"""Texts that PyYAML fails to read with errors of Python."""
PRINCIPALS = """
trainer: [status, sample]
operator.lab: ["*"]
"""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    found = Certificates(tmp_path_factory.mktemp("certificates") / "ours")
    for name in ("operator.lab", "stranger"):
        found.write(name, found.authority.client(name, days=1))
    return found


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Tokens:
    return Tokens(tmp_path_factory.mktemp("tokens") / "tokens.json")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("mutual")
    (found / "principals.yaml").write_text(PRINCIPALS)
    return found


@pytest.fixture(scope="module")
def mutual(certificates: Certificates, tokens: Tokens, folder: Path) -> Iterator[LocalServer]:
    ca = ("--tls-client-ca", str(certificates.path("ca")))
    names = ("--tls-principals", str(folder / "principals.yaml"), *tokens.options)
    secret = ("--env-kwargs", '{"max_episode_steps": 123456}', "--audit-log", str(folder / "audit"))
    with serving(folder, *certificates.server, *ca, *names, *secret) as running:
        yield running


def files(certificates: Certificates, name: str) -> dict[str, Any]:
    return {**certificates.ca, "cert": certificates.path(name), "key": certificates.path(f"{name}-key")}


def test_name_in_the_certificate_is_the_principal(mutual: LocalServer, certificates: Certificates) -> None:
    with rollserve.connect(mutual.address, **files(certificates, "client")) as sampler:
        sampler.status()
        with raises(rollserve.AccessError, reason=Reason.SCOPE_MISSING, quotes=("agent:write", "trainer")):
            sampler.update_agent(rollserve.RandomAgent())


def test_unknown_certificate_needs_a_token(mutual: LocalServer, certificates: Certificates, tokens: Tokens) -> None:
    with (
        rollserve.connect(mutual.address, **files(certificates, "stranger")) as sampler,
        raises(rollserve.AccessError, reason=Reason.TOKEN_MISSING, quotes="certificate"),
    ):
        sampler.status()
    text = tokens.create("guest", "status")
    with rollserve.connect(mutual.address, token=text, **files(certificates, "stranger")) as sampler:
        sampler.status()


@pytest.mark.parametrize("name", ["trainer\0.evil", "trainer\n", "\x1b[2Jtrainer"])
@pytest.mark.parametrize("is_alternative", [False, True])
def test_certificate_with_control_characters_in_a_name_proves_nobody(
    mutual: LocalServer, certificates: Certificates, name: str, is_alternative: bool
) -> None:
    """gRPC ends names at a NUL, so that this one would be the trainer's."""
    authority = certificates.authority
    purpose, names = ExtendedKeyUsageOID.CLIENT_AUTH, x509.SubjectAlternativeName([x509.DNSName(name)])
    issued = authority._issue("trainer", 1, purpose, names) if is_alternative else authority.client(name, days=1)
    certificates.write("odd", issued)
    with (
        rollserve.connect(mutual.address, **files(certificates, "odd")) as sampler,
        raises(rollserve.AccessError, reason=Reason.TOKEN_MISSING, quotes="certificate"),
    ):
        sampler.status()


def test_certificate_with_other_names_is_the_principal(mutual: LocalServer, certificates: Certificates) -> None:
    others = x509.SubjectAlternativeName([x509.OtherName(x509.ObjectIdentifier("1.2.3"), b"\x05\x00")])
    certificates.write("other", certificates.authority._issue("trainer", 1, ExtendedKeyUsageOID.CLIENT_AUTH, others))
    with rollserve.connect(mutual.address, **files(certificates, "other")) as sampler:
        sampler.status()


def test_invalid_token_is_refused_beside_a_certificate(mutual: LocalServer, certificates: Certificates) -> None:
    with (
        rollserve.connect(mutual.address, token="rst_x", **files(certificates, "client")) as sampler,
        raises(rollserve.AccessError, reason=Reason.TOKEN_INVALID),
    ):
        sampler.status()


def test_changed_names_count_at_once(mutual: LocalServer, certificates: Certificates, folder: Path) -> None:
    path = folder / "principals.yaml"
    with rollserve.connect(mutual.address, **files(certificates, "stranger")) as sampler:
        try:
            path.write_text(f"{PRINCIPALS}stranger: [status]\n")
            sampler.status()
            for malformed in ("- status", "stranger: status", "stranger: [all]", "{", '"two words": [status]', *ODD):
                path.write_text(malformed)
                sampler.status()
        finally:
            path.write_text(PRINCIPALS)
        with raises(rollserve.AccessError, reason=Reason.TOKEN_MISSING):
            sampler.status()


def test_administrator_sees_what_is_hidden_from_others(mutual: LocalServer, certificates: Certificates) -> None:
    """A loopback address shows nothing more on a server with principals."""
    with rollserve.connect(mutual.address, **files(certificates, "client")) as sampler:
        status = sampler.status()
        assert status.hidden_arguments == ("kwargs.max_episode_steps",)
        assert (status.workers[0].process_id, status.workers[0].host) == (0, "")
    wrong = rollserve.EnvSpec("HalfCheetah-v5", {"xml_file": "no_such.xml"})
    with rollserve.connect(mutual.address, **files(certificates, "operator.lab")) as sampler:
        status = sampler.status()
        assert status.hidden_arguments == ()
        assert status.envs[0].kwargs == {"max_episode_steps": 123456}
        assert status.workers[0].process_id == mutual.process.pid
        with raises(rollserve.InvalidArgumentError, reason=Reason.ENV_REFUSED, quotes="/gymnasium/"):
            sampler.update_env(wrong)


def audit_lines(folder: Path) -> list[str]:
    return (folder / "audit").read_text().splitlines()


def test_audit_log_names_principals(mutual: LocalServer, certificates: Certificates, folder: Path) -> None:
    with rollserve.connect(mutual.address, **files(certificates, "operator.lab")) as sampler:
        sampler.resize(1)
    with rollserve.connect(mutual.address, **files(certificates, "stranger")) as sampler, raises(rollserve.AccessError):
        sampler.status()
    assert soon(lambda: "TOKEN_MISSING" in audit_lines(folder)[-1])  # the client may have its answer before the line
    allowed, refused = map(json.loads, audit_lines(folder)[-2:])
    assert (allowed["principal"], allowed["rpc"], allowed["decision"]) == ("operator.lab", "ResizePool", "allowed")
    assert (refused["principal"], refused["decision"], refused["reason"]) == (None, "refused", "TOKEN_MISSING")
