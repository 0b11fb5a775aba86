"""`rollserve-server init-tls`: certificates for development, signed by an authority of their own."""

from rollserve_server.init_tls.authority import Authority
from rollserve_server.init_tls.command import init_tls_command

__all__ = ["Authority", "init_tls_command"]
