"""Certificates of the tests, in files as an operator has them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from support import server_environment

from rollserve_server.init_tls.authority import Authority, Issued
from rollserve_server.local import LocalServer, local_server

LIGHT = ("--env", "CartPole-v1", "--backend", "in-process", "--workers", "1", "--seed", "7")


@contextlib.contextmanager
def serving(folder: Path, *options: str) -> Iterator[LocalServer]:
    """Yield a light server whose log is `log` in the folder, and has no traceback at the end."""
    log = folder / "log"
    with local_server(*LIGHT, *options, log=log, environment=server_environment()) as running:
        yield running
    assert "Traceback" not in log.read_text()


class Certificates:
    """An authority, and files with certificates that it signed.

    Attributes:
        folder: where the files are.
        authority: signs further certificates.
        ca: arguments of `connect` to trust the authority.
        client: the same, with a certificate of a client.
        server: options of a server with a certificate for 127.0.0.1.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority.new(days=1)
        folder.mkdir()
        self.write("ca", self.authority.own)
        self.write("server", self.authority.server(["127.0.0.1"], days=1))
        self.write("client", self.authority.client("trainer", days=1))
        self.ca = {"ca": self.path("ca")}
        self.client = {**self.ca, "cert": self.path("client"), "key": self.path("client-key")}
        self.server = ("--tls-cert", str(self.path("server")), "--tls-key", str(self.path("server-key")))

    def path(self, name: str) -> Path:
        return self.folder / f"{name}.pem"

    def write(self, name: str, issued: Issued) -> None:
        """Write a certificate and its key."""
        self.path(name).write_bytes(issued.cert)
        self.path(f"{name}-key").write_bytes(issued.key)
