"""Principals and their grants: clients prove who they are by tokens or certificates."""

from rollserve_server.identity.authentication import Authentication
from rollserve_server.identity.expiry import Expiry, ExpiryLog
from rollserve_server.identity.principal import ANONYMOUS, Principal
from rollserve_server.identity.scopes import Grant, Scope
from rollserve_server.identity.token_file import Token, TokenFile

__all__ = ["ANONYMOUS", "Authentication", "Expiry", "ExpiryLog", "Grant", "Principal", "Scope", "Token", "TokenFile"]
