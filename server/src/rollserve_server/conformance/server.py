"""A server of the kit, for the duration of a block."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollserve_server.authority import Authority
from rollserve_server.identity import Token, TokenFile
from rollserve_server.local import local_server
from rollserve_server.testing import FaultyServer

if TYPE_CHECKING:
    from rollserve_server.local import LocalServer

__all__ = ["ConformanceServer", "conformance_server", "secure_server"]

_OPTIONS = (
    *("--env", "Conformance-v0", "--backend", "in-process", "--workers", "2", "--rows", "2"),
    *("--vectorization", "rows", "--allow-method", "describe", "--seed", "0"),
    *("--allow-module", "rollserve_server.conformance.many_environments"),
    *("--log-level", "ERROR", "--worker-buffer-bytes", str(512 << 20)),
)
_DAYS = 1.0


@dataclass(frozen=True)
class ConformanceServer:
    """A running server.

    Attributes:
        server: its process.
        faulty: the same server, to ask for faults.
        connect: what a client needs to connect, by the names of `connect` in a case.
        others: further values of `connect` that cases ask for by name, such as the token of nobody.
    """

    server: LocalServer
    faulty: FaultyServer
    connect: Mapping[str, Any]
    others: Mapping[str, str]

    def reset(self) -> None:
        """Bring the server to where it was at its start."""
        self.server.request("forget-records")
        self.faulty.reset()

    def replay(self, script: Mapping[str, Any]) -> None:
        """Answer the next RPC of a name by a script; see `RpcRecorder`."""
        self.server.request(f"script {json.dumps(script)}")

    def records(self) -> list[dict[str, Any]]:
        """Return the records of all RPCs since the reset; see `RpcRecorder`."""
        return json.loads(self.server.request("records"))  # type: ignore[no-any-return]


@contextlib.contextmanager
def conformance_server() -> Iterator[ConformanceServer]:
    """Start a server without encryption.

    Raises:
        RuntimeError: it did not start.
    """
    with (
        _installed_policy() as environment,
        local_server(*_OPTIONS, module="rollserve_server.conformance.serve", environment=environment) as server,
    ):
        yield ConformanceServer(server, FaultyServer(server), {"target": server.address}, {})


@contextlib.contextmanager
def _installed_policy() -> Iterator[dict[str, str]]:
    """Yield environment variables of a server that has the policy of the cases installed."""
    with tempfile.TemporaryDirectory(prefix="rollserve-") as name:
        package = Path(name) / "rollserve_conformance_policy-1.0.dist-info"
        package.mkdir()
        (package / "METADATA").write_text("Metadata-Version: 2.1\nName: rollserve-conformance-policy\nVersion: 1.0\n")
        entry = "conformance = rollserve_server.conformance.policy:ConformancePolicy"
        (package / "entry_points.txt").write_text(f"[rollserve.agents]\n{entry}\n")
        yield {"PYTHONPATH": os.pathsep.join(filter(None, (name, os.environ.get("PYTHONPATH"))))}


@contextlib.contextmanager
def secure_server() -> Iterator[ConformanceServer]:
    """Start a server with TLS that asks for a token.

    Raises:
        RuntimeError: it did not start.
    """
    with tempfile.TemporaryDirectory(prefix="rollserve-") as name:
        folder = Path(name)
        authority, stranger = Authority.new(_DAYS), Authority.new(_DAYS)
        own = authority.server(["127.0.0.1"], _DAYS)
        for file, content in {
            "ca.pem": authority.own.cert,
            "other-ca.pem": stranger.own.cert,
            "server.pem": own.cert,
            "server-key.pem": own.key,
        }.items():
            (folder / file).write_bytes(content)
        token, text = Token.new("client", ("status", "sample", "agent:write", "env:write"), None)
        expired, expired_text = Token.new("late", ("status",), -_DAYS)
        limited, limited_text = Token.new("watcher", ("status",), None)
        TokenFile(folder / "tokens.json").write([token, expired, limited])
        options = (
            *("--tls-cert", str(folder / "server.pem"), "--tls-key", str(folder / "server-key.pem")),
            *("--token-hashes", str(folder / "tokens.json")),
        )
        others = {
            "other_ca": str(folder / "other-ca.pem"),
            "expired_token": expired_text,
            "limited_token": limited_text,
        }
        with local_server(*_OPTIONS, *options, module="rollserve_server.conformance.serve") as server:
            connect = {"target": server.address, "ca": str(folder / "ca.pem"), "token": text}
            yield ConformanceServer(server, FaultyServer(server), connect, others)
