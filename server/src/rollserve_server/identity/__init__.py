"""Principals and their grants: clients prove who they are by tokens or certificates."""

from rollserve_server.identity.authentication import Authentication
from rollserve_server.identity.principals import ANONYMOUS, Grant, Principal, Scope
from rollserve_server.identity.proofs import Expiry, ExpiryLog
from rollserve_server.identity.token_file import Token, TokenFile

__all__ = ["ANONYMOUS", "Authentication", "Expiry", "ExpiryLog", "Grant", "Principal", "Scope", "Token", "TokenFile"]
