"""`rollserve-server token`: makes, lists and revokes bearer tokens."""

from rollserve_server.tokens.command import token_command

__all__ = ["token_command"]
