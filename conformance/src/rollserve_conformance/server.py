"""A server of the kit, for the duration of a block."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollserve_server.local import local_server
from rollserve_server.testing import FaultyServer

if TYPE_CHECKING:
    from rollserve_server.local import LocalServer

__all__ = ["ConformanceServer", "conformance_server", "secure_server"]

_OPTIONS = (
    *("--env", "Conformance-v0", "--backend", "in-process", "--workers", "2", "--rows", "2"),
    *("--vectorization", "rows", "--allow-method", "describe", "--seed", "0"),
    *("--allow-module", "rollserve_conformance.many_environments"),
    *("--log-level", "ERROR", "--worker-buffer-bytes", str(512 << 20)),
)
_MODULE = "rollserve_conformance.serve"
_INSTANT_DAYS = "1e-9"
"""How long a token is valid that has expired once the server reads it."""


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
    with local_server(*_OPTIONS, module=_MODULE) as server:
        yield ConformanceServer(server, FaultyServer(server), {"target": server.address}, {})


@contextlib.contextmanager
def secure_server() -> Iterator[ConformanceServer]:
    """Start a server with TLS that asks for a token.

    Raises:
        RuntimeError: it did not start.
    """
    with tempfile.TemporaryDirectory(prefix="rollserve-") as name:
        own, other, tokens = (Path(name, part) for part in ("own", "other", "tokens.json"))
        for folder in (own, other):
            _run("init-tls", str(folder))

        def token(name: str, *options: str) -> str:
            return _run("token", "create", "--file", str(tokens), "--name", name, "--scope", "status", *options)

        writer = token("client", "--scope", "sample", "--scope", "agent:write", "--scope", "env:write")
        others = {
            "other_ca": str(other / "ca.pem"),
            "expired_token": token("late", "--expires", _INSTANT_DAYS),
            "limited_token": token("watcher"),
        }
        options = (
            *("--tls-cert", str(own / "server.pem"), "--tls-key", str(own / "server-key.pem")),
            *("--token-hashes", str(tokens)),
        )
        with local_server(*_OPTIONS, *options, module=_MODULE) as server:
            connect = {"target": server.address, "ca": str(own / "ca.pem"), "token": writer}
            yield ConformanceServer(server, FaultyServer(server), connect, others)


def _run(*command: str) -> str:
    """Run a command of `rollserve-server`; return what it prints.

    Raises:
        RuntimeError: it has failed.
    """
    done = subprocess.run(  # noqa: S603  # the kit's own
        [sys.executable, "-m", "rollserve_server", *command], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    return done.stdout.strip()
