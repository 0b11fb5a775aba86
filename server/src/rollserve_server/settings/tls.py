"""Encryption of connections: the files with the server's certificate, and whose certificates clients need."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, ValidationInfo, field_validator

from rollserve_server.settings.groups import Group

__all__ = ["TlsSettings"]


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
