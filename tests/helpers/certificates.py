"""Certificates of the tests, in files as an operator has them."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from support import server_environment

from rollserve_server.authority import Authority, Issued
from rollserve_server.local import LocalServer, local_server

LIGHT = ("--env", "CartPole-v1", "--backend", "in-process", "--workers", "1", "--seed", "7")


@contextlib.contextmanager
def serving(folder: Path, *options: str) -> Iterator[LocalServer]:
    """Yield a light server whose log is `log` in the folder, and has no traceback at the end."""
    log = folder / "log"
    with local_server(*LIGHT, *options, log=log, environment=server_environment()) as running:
        yield running
    assert "Traceback" not in log.read_text()


def dated(issued: Issued, signer: Issued, *, starts: float, expires: float) -> bytes:
    """Return a certificate in PEM again, with the same key, and other dates, in days from now; signed by a key."""
    old, key = x509.load_pem_x509_certificate(issued.cert), load_pem_private_key(signer.key, None)
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(old.issuer, old.subject, old.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now + datetime.timedelta(days=starts))
    builder = builder.not_valid_after(now + datetime.timedelta(days=expires))
    for extension in old.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)  # type: ignore[arg-type]


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
