"""The command line `rollserve-server`."""

import os

# gRPC has no setting for the least version of TLS, but reads a list of the ciphers of TLS 1.2 when it is imported. The
# one cipher of this list needs a key shared in advance, which gRPC never has, so that no handshake of TLS 1.2 succeeds.
# The ciphers of TLS 1.3 are not on the list.
_CIPHERS = "GRPC_SSL_CIPHER_SUITES"
_is_default = _CIPHERS not in os.environ
os.environ.setdefault(_CIPHERS, "ECDHE-PSK-CHACHA20-POLY1305")

import grpc.aio  # noqa: E402, F401

from rollserve_server.cli.main import main  # noqa: E402

if _is_default:  # environments of the workers may use gRPC with others
    del os.environ[_CIPHERS]

__all__ = ["main"]
