"""The gateway: where it listens, how clients prove who they are, and what they may take of it."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, ValidationInfo, field_validator

from rollserve_server.settings.groups import Address, Group, Reloadable

__all__ = [
    "ClientLimits",
    "GatewaySettings",
    "IdentitySettings",
    "TlsSettings",
    "TracingSettings",
    "is_loopback",
    "is_safe_url",
]


class TlsSettings(Group):
    """Settings of TLS; without a certificate, connections are not encrypted."""

    tls_cert: Path | None = Field(
        default=None,
        description="A PEM file with the server's certificate, followed by those between it and the authority, to "
        "encrypt connections with TLS 1.3. When it changes, new connections get the new one.",
    )
    tls_key: Path | None = Field(
        default=None, validate_default=True, description="A PEM file with the private key of the certificate."
    )
    tls_client_ca: Path | None = Field(
        default=None,
        description="A PEM file with certificates of authorities: clients need a certificate that one of them signed.",
    )

    @field_validator("tls_key")
    @classmethod
    def _check_key(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        cert = info.data.get("tls_cert")
        if value is None and cert is not None:
            raise ValueError("expected the private key of the certificate, because --tls-cert is given")
        if value is not None and cert is None:
            raise ValueError("expected a certificate, too (--tls-cert)")
        return value

    @field_validator("tls_client_ca")
    @classmethod
    def _check_client_ca(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        if value is not None and info.data.get("tls_cert") is None:
            raise ValueError("expected a certificate of the server, too (--tls-cert)")
        return value


class TracingSettings(Group):
    """Settings of OpenTelemetry; without an endpoint, nothing is sent."""

    otlp_endpoint: str | None = Field(
        default=None,
        description="Where to send traces of RPCs: a collector for OpenTelemetry that accepts OTLP over gRPC, as "
        "http://HOST:PORT without encryption, or https://HOST:PORT. Without it, nowhere. Needs the extra "
        "tracing.",
    )
    otlp_signals: tuple[Literal["traces", "logs", "metrics"], ...] = Field(
        default=("traces",), min_length=1, description="What to send there: traces, logs, metrics."
    )
    trace_ratio: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="Share of the RPCs that are traced. Where a client sends the traceparent of a trace, it decides.",
    )

    def endpoint_of(self, signal: Literal["traces", "logs", "metrics"]) -> str | None:
        """Return where to send a kind of telemetry; None for nowhere."""
        return self.otlp_endpoint if signal in self.otlp_signals else None

    @field_validator("otlp_endpoint")
    @classmethod
    def _check_endpoint(cls, value: str | None) -> str | None:
        if value is not None and not _is_endpoint(value):
            raise ValueError("expected http://HOST:PORT or https://HOST:PORT, such as http://127.0.0.1:4317")
        return value


def _is_endpoint(value: str) -> bool:
    try:
        parts = urlsplit(value)
        has_port = parts.port is not None
    except ValueError:
        return False
    is_bare = parts.path in ("", "/") and not (parts.query or parts.fragment or parts.username)
    return parts.scheme in ("http", "https") and bool(parts.hostname) and has_port and is_bare


class IdentitySettings(Group):
    """Settings of identity; without any, every client may do what the other settings permit."""

    token_hashes: Reloadable[Path | None] = Field(
        default=None,
        description="A file with hashes of the tokens that clients may show, which rollserve-server token create "
        "writes. When it changes, the next RPC sees that. With this setting, clients need a token.",
    )
    tls_principals: Reloadable[Path | None] = Field(
        default=None,
        description="A YAML file with names in clients' certificates, and a list of scopes for each. With this "
        "setting, clients need such a certificate, or a token. Needs --tls-client-ca.",
    )
    jwt_jwks: Reloadable[Path | None] = Field(
        default=None,
        description="A JSON Web Key Set with the public keys that signed tokens (JWT) are verified by, instead of "
        "the issuer's own. Needs --jwt-issuer and --jwt-audience.",
    )
    jwt_issuer: Reloadable[str | None] = Field(
        default=None,
        validate_default=True,
        description="The claim iss that signed tokens (JWT) need. "
        "Without --jwt-jwks, also the URL of an issuer by OpenID Connect, whose keys are fetched: https, or http on "
        "this machine. With this setting, clients need a token. Needs --jwt-audience.",
    )
    jwt_audience: Reloadable[str | None] = Field(
        default=None, validate_default=True, description="The claim aud that signed tokens need, alone or in a list."
    )
    jwt_leeway_seconds: Reloadable[float] = Field(
        default=30.0,
        ge=0,
        le=600,
        description="How far the clocks of the issuer and the server may differ, for exp, nbf and iat.",
    )
    jwt_scope_claim: Reloadable[str] = Field(
        default="scope", description="The claim with the scopes of a signed token: a text with blanks, or a list."
    )
    jwt_scopes: Reloadable[Path | None] = Field(
        default=None,
        description="A YAML file that says which scopes values of a claim have: claim, its name, or a list of names "
        "that lead to it; and scopes, a list of scopes for each value. --jwt-scope-claim does not count then. When the "
        "file changes, the next RPC sees that.",
    )

    @property
    def is_required(self) -> bool:
        """Whether clients have to prove who they are."""
        return not (self.token_hashes is None and self.tls_principals is None and self.jwt_issuer is None)

    @field_validator("jwt_issuer")
    @classmethod
    def _check_issuer(cls, value: str | None, info: ValidationInfo) -> str | None:
        has_keys = info.data.get("jwt_jwks") is not None
        if value is None and has_keys:
            raise ValueError("expected the claim that tokens need, because --jwt-jwks is given")
        if value is not None and not has_keys and not is_safe_url(value):
            raise ValueError("expected https://HOST/…, the URL of the issuer, or keys, too (--jwt-jwks)")
        return value

    @field_validator("jwt_audience")
    @classmethod
    def _check_audience(cls, value: str | None, info: ValidationInfo) -> str | None:
        has_issuer = info.data.get("jwt_issuer") is not None
        if value is None and has_issuer:
            raise ValueError("expected the claim that tokens need, because --jwt-issuer is given")
        if value is not None and not has_issuer:
            raise ValueError("expected an issuer, too (--jwt-issuer)")
        return value

    @field_validator("jwt_scopes")
    @classmethod
    def _check_scopes(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        if value is not None and info.data.get("jwt_issuer") is None:
            raise ValueError("expected an issuer, too (--jwt-issuer)")
        return value


class ClientLimits(Group):
    """Settings of clients: their share of the gateway, and how it notices that they are gone."""

    max_rpcs: Reloadable[int] = Field(
        default=1000,
        ge=1,
        le=100_000,
        description="Number of RPCs that may run at the same time; further ones are refused. Health checks have 512 "
        "places of their own.",
    )
    max_peer_rpcs: Reloadable[int] = Field(
        default=500,
        ge=1,
        le=100_000,
        description="Number of them that may come from one address, or one /64 network of IPv6, or from one principal; "
        "clients behind a proxy have its address.",
    )
    max_connections: int = Field(
        default=1000,
        ge=1,
        le=1_000_000,
        description="Number of connections that clients may have; further ones are closed.",
    )
    max_peer_connections: Reloadable[int] = Field(
        default=500,
        ge=1,
        le=1_000_000,
        description="Number of connections from one address, or one /64 network of IPv6, that are kept; further ones "
        "are closed within a second. Clients behind a proxy have its address. Only on Linux and macOS.",
    )
    handshake_seconds: float = Field(
        default=10.0,
        gt=0,
        le=1e6,
        description="How long a new connection may take until its client has sent the settings of HTTP/2.",
    )
    max_connection_rpcs: int = Field(
        default=256,
        ge=1,
        le=100_000,
        description="Number of RPCs that may run at the same time over one connection; further ones wait in the "
        "client.",
    )
    max_pending_request_bytes: int = Field(
        default=1536 << 20,
        ge=1,
        description="Bytes of requests with agents or environments: a third for those being received, a third for "
        "updates in progress, where further ones wait, and a third for running evaluations, where further ones are "
        "refused. Each third has room for the largest request, whatever is set.",
    )
    client_stall_seconds: Reloadable[float] = Field(
        default=600.0,
        gt=0,
        le=1e6,
        description="How long a client may leave data unread, or not send what it began to, before its call is ended.",
    )
    keepalive_seconds: float = Field(
        default=20.0,
        ge=0,
        le=1e6,
        description="Silence on a connection after which the client is pinged. With 0, never.",
    )
    keepalive_timeout_seconds: float = Field(
        default=10.0,
        gt=0,
        le=1e6,
        description="How long the answer to a ping may take before the connection is closed and its calls are ended.",
    )
    max_connection_idle_seconds: float = Field(
        default=3600.0,
        ge=0,
        le=1e6,
        description="How long a connection may have no RPC before it is closed. With 0, for ever.",
    )
    max_connection_age_seconds: float = Field(
        default=0.0,
        ge=0,
        le=1e6,
        description="How long a connection accepts new RPCs; then clients connect again, and may reach another server. "
        "Running RPCs go on. With 0, for ever.",
    )
    max_connection_age_grace_seconds: float = Field(
        default=0.0,
        ge=0,
        le=1e6,
        description="How long RPCs may go on over a connection that accepts no new ones. With 0, for ever.",
    )


class GatewaySettings(Group):
    """Settings of the gateway: its addresses, and the largest requests."""

    tls: TlsSettings = Field(default_factory=TlsSettings)
    tracing: TracingSettings = Field(default_factory=TracingSettings)
    identity: IdentitySettings = Field(default_factory=IdentitySettings)
    audit_log: Reloadable[Path | None] = Field(
        default=None,
        description="A file to which a line of JSON is added for each RPC but health checks: who asked for what, and "
        "what became of it; - for standard error. It can be renamed while the server runs.",
    )
    audit_log_bytes: int | None = Field(
        default=None,
        ge=4096,
        description="Size of that file at which the server renames it, with .1 at its end, and begins another one. The "
        "last nine are kept. Without it, any size.",
    )
    insecure: bool = Field(
        default=False,
        description="Listen beyond this machine without TLS: everybody in the network can read connections, change "
        "what they carry, and use the server.",
    )
    listen: Address = Field(
        default="127.0.0.1:50051",
        description="Where to listen, as HOST:PORT. Port 0 takes a free one. Beyond this machine with TLS or "
        "--insecure only.",
    )
    health_listen: Address | None = Field(
        default=None,
        description="Where the health service listens for itself, as HOST:PORT, besides with the others: with limits "
        "of its own, so that clients of the sampler cannot hold it up.",
    )
    max_request_bytes: int = Field(
        default=256 << 20, ge=4096, lt=2**31, description="Size of the largest request that is accepted."
    )
    shared_memory_bytes: int = Field(
        default=0,
        ge=0,
        description="Memory through which results may go to clients of the same user on this machine that ask for it: "
        "32 MiB for each running call, as far as it reaches; other calls are answered as usual. Only on Linux.",
    )
    max_renders: int = Field(
        default=2,
        ge=0,
        le=64,
        description="Number of videos that are made at a time, each in a process of its own on the gateway's machine; "
        "further ones queue. With 0, none are made.",
    )
    data_dir: Path | None = Field(
        default=None,
        description="A folder in which clients with the scopes for it record and read datasets, which they name by "
        "paths within it. Without it, nothing is recorded or read.",
    )
    grace_seconds: Reloadable[float] = Field(
        default=10.0, ge=0, description="How long running calls may go on after SIGTERM or Ctrl-C."
    )
    clients: ClientLimits = ClientLimits()

    @field_validator("identity")
    @classmethod
    def _check_certificates(cls, value: IdentitySettings, info: ValidationInfo) -> IdentitySettings:
        tls = info.data.get("tls")
        if value.tls_principals is not None and tls is not None and tls.tls_client_ca is None:
            raise ValueError("expected authorities of clients' certificates, too (--tls-client-ca)")
        return value

    @field_validator("data_dir")
    @classmethod
    def _check_folder(cls, value: Path | None) -> Path | None:
        if value is not None and not value.is_dir():
            raise ValueError("expected a folder that exists")
        return value

    @field_validator("listen")
    @classmethod
    def _check_encrypted(cls, value: str, info: ValidationInfo) -> str:
        host = value.rpartition(":")[0]
        tls = info.data.get("tls")  # None if it is invalid itself
        is_plain = tls is not None and tls.tls_cert is None
        if is_plain and not info.data.get("insecure", True) and not is_loopback(host):
            raise ValueError(
                "expected an address of this machine alone, such as 127.0.0.1:50051, because connections are not "
                "encrypted (give --tls-cert and --tls-key to encrypt them, or --insecure if you trust the network)"
            )
        return value


def is_safe_url(value: str) -> bool:
    """Whether nobody in the network can change what is read at a URL: it is of https, or of this machine."""
    try:
        parts = urlsplit(value)
        host = parts.hostname
    except ValueError:
        return False
    is_bare = not (parts.query or parts.fragment or parts.username)
    return bool(host) and is_bare and (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host or "")))


def is_loopback(host: str) -> bool:
    """Whether a host is an address of this machine that no other machine reaches."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
