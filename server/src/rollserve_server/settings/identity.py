"""Identity: how clients prove who they are, and which scopes they have."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, ValidationInfo, field_validator

from rollserve_server.settings.groups import Group

__all__ = ["IdentitySettings"]


class IdentitySettings(Group):
    """Settings of identity; without any, every client may do what the other settings permit."""

    token_hashes: Path | None = Field(
        default=None,
        description="A file with hashes of the tokens that clients may show, which rollserve-server token create "
        "writes. When it changes, the next RPC sees that. With this setting, clients need a token.",
    )
    tls_principals: Path | None = Field(
        default=None,
        description="A YAML file with names in clients' certificates, and a list of scopes for each. With this "
        "setting, clients need such a certificate, or a token. Needs --tls-client-ca.",
    )
    jwt_jwks: Path | None = Field(
        default=None,
        description="A JSON Web Key Set with the public keys that signed tokens (JWT) are verified by. With this "
        "setting, clients need a token. Needs --jwt-issuer and --jwt-audience.",
    )
    jwt_issuer: str | None = Field(
        default=None, validate_default=True, description="The claim iss that signed tokens need."
    )
    jwt_audience: str | None = Field(
        default=None, validate_default=True, description="The claim aud that signed tokens need, alone or in a list."
    )
    jwt_leeway_seconds: float = Field(
        default=30.0,
        ge=0,
        le=600,
        description="How far the clocks of the issuer and the server may differ, for exp, nbf and iat.",
    )
    jwt_scope_claim: str = Field(
        default="scope", description="The claim with the scopes of a signed token: a text with blanks, or a list."
    )

    @property
    def is_required(self) -> bool:
        """Whether clients have to prove who they are."""
        return not (self.token_hashes is None and self.tls_principals is None and self.jwt_jwks is None)

    @field_validator("jwt_issuer", "jwt_audience")
    @classmethod
    def _check_claim(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is None and info.data.get("jwt_jwks") is not None:
            raise ValueError("expected the claim that tokens need, because --jwt-jwks is given")
        if value is not None and info.data.get("jwt_jwks") is None:
            raise ValueError("expected keys, too (--jwt-jwks)")
        return value
