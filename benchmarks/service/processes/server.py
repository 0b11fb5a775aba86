"""A running service: a server with its workers, and a client process."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

import rollserve
from benchmarks.service.processes.meter import Meter, processes_of_server
from benchmarks.shared.commands import Child
from benchmarks.shared.processes import one_thread
from rollserve_server.authority import Authority
from rollserve_server.identity import Token, TokenFile
from rollserve_server.local import local_server

__all__ = ["Service", "TracedService", "running_service", "traced_service"]

_ENVIRONMENTS = "benchmarks.service.environments"
_TIMEOUT_SECONDS = 300
_Agent = rollserve.Agent | rollserve.Policies


@dataclass(frozen=True)
class Service:
    """A running service.

    Attributes:
        sampler: sampler of this process, for updates.
        client: process whose calls are timed.
        meter: meter of the groups `gateway`, `workers`, `ray` and `client`.
        folder: folder for the measurement's files; removed at the end.
    """

    sampler: rollserve.Sampler
    client: Child
    meter: Meter
    folder: Path

    def metered(self, command: str, **arguments: Any) -> tuple[dict[str, Any], dict[str, float]]:
        """Return the client's answer to a command, and the command's cost as `Meter.stop` returns it."""
        self.meter.start()
        answer = self.client.ask(command, **arguments)
        return answer, self.meter.stop()

    def last_sample(self, num_steps: int) -> rollserve.EpisodeBatch:
        """Return segments with about `num_steps` steps from the client's last batch."""
        path = self.folder / "sample.npz"
        self.client.ask("save_sample", path=str(path), num_steps=num_steps)
        return rollserve.EpisodeBatch.load(path)


@dataclass(frozen=True)
class TracedService(Service):
    """A running service whose server traces its RPCs.

    Attributes:
        server: the server's process; see `traced_server`.
    """

    server: Child

    def traced(self, command: str, **arguments: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return the client's answer to a command, and the server's events meanwhile."""
        self.server.ask("take_events")
        answer = self.client.ask(command, **arguments)
        return answer, self.server.ask("take_events")["events"]


@contextlib.contextmanager
def running_service(
    env: rollserve.EnvSpec,
    agent: _Agent,
    num_workers: int,
    *server_options: str,
    encrypted: bool = False,
    with_token: bool = False,
) -> Iterator[Service]:
    """Run a server with an environment and an agent, and a client, for as long as the block.

    Args:
        env: environment.
        agent: agent, or policies by name.
        num_workers: number of workers.
        server_options: further options of the server.
        encrypted: whether all connections use TLS.
        with_token: whether all calls need a token; only with TLS.

    Raises:
        RuntimeError: the server does not start, or not all of its workers run.
    """
    with _folder() as folder:
        ca, tls_options = _certificates(folder) if encrypted else (None, ())
        token_file, token_options = _token(folder) if with_token else (None, ())
        options = (*_options(num_workers), *server_options, *tls_options, *token_options)
        with (
            local_server(*options, log=folder / "log", environment=one_thread()) as server,
            _connected(server.address, server.process.pid, env, agent, ca, token_file) as (sampler, client, meter),
        ):
            yield Service(sampler, client, meter, folder)


@contextlib.contextmanager
def traced_service(env: rollserve.EnvSpec, agent: _Agent, num_workers: int) -> Iterator[TracedService]:
    """Run a service as `running_service` does, with a server that traces its RPCs."""
    module = "benchmarks.service.processes.traced_server"
    with _folder() as folder, Child(module, str(folder / "log"), *_options(num_workers)) as server:
        address = f"127.0.0.1:{server.ask('port')['port']}"
        with _connected(address, server.pid, env, agent) as (sampler, client, meter):
            yield TracedService(sampler, client, meter, folder, server)


def _options(num_workers: int) -> tuple[str, ...]:
    return "--env", "CartPole-v1", "--workers", str(num_workers), "--allow-module", _ENVIRONMENTS


def _certificates(folder: Path) -> tuple[Path, tuple[str, ...]]:
    """Write certificates into a folder; return the file of their authority, and options of a server that uses them."""
    authority = Authority.new(days=1)
    issued = authority.server(["127.0.0.1"], days=1)
    ca, cert, key = (folder / f"{name}.pem" for name in ("ca", "cert", "key"))
    for path, contents in ((ca, authority.own.cert), (cert, issued.cert), (key, issued.key)):
        path.write_bytes(contents)
    return ca, ("--tls-cert", str(cert), "--tls-key", str(key))


def _token(folder: Path) -> tuple[Path, tuple[str, ...]]:
    """Write a token into a folder; return its file, and options of a server that asks for it."""
    token, text = Token.new("trainer", ["*"], None)
    hashes, file = folder / "tokens.json", folder / "token"
    TokenFile(hashes).write([token])
    file.write_text(text)
    return file, ("--token-hashes", str(hashes))


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="rollserve-bench-") as folder:
        yield Path(folder)


@contextlib.contextmanager
def _connected(
    address: str,
    server_pid: int,
    env: rollserve.EnvSpec,
    agent: _Agent,
    ca: Path | None = None,
    token_file: Path | None = None,
) -> Iterator[tuple[rollserve.Sampler, Child, Meter]]:
    """Give a server an environment and an agent; yield a sampler, a client process, and the meter of all processes."""
    with rollserve.connect(address, timeout=_TIMEOUT_SECONDS, ca=ca, token_file=token_file) as sampler:
        sampler.update_env(env)
        sampler.update_agent(agent)
        files = (str(file) for file in (ca, token_file) if file is not None)
        with Child("benchmarks.service.processes.client", address, *files) as client:
            client.ask("hello")
            worker_pids = {worker.process_id for worker in sampler.status().workers}
            groups = {**processes_of_server(server_pid, worker_pids), "client": [psutil.Process(client.pid)]}
            yield sampler, client, Meter(groups)
