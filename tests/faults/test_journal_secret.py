"""A sampler's secret in a shared Ray cluster: only servers that know it reach the sampler's state."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from raw_calls import soon
from ray_clusters import RayCluster, cluster_server, ray_cluster

import rollserve
from rollserve_server.pool.backends.ray.identity import ForgedMessageError, SamplerIdentity, Seal, journal_name

OPTIONS = ("--env", "CartPole-v1", "--workers", "1", "--worker-num-cpus", "0.25")
NAMESPACE = "rollserve"

INTRUDER = """
import pathlib, sys
import ray

class Bomb:
    def __reduce__(self):
        return pathlib.Path.touch, (pathlib.Path(sys.argv[2]),)

ray.init(address=sys.argv[1], namespace="rollserve", log_to_driver=False)
import pickle
(name,) = (name for name in ray.util.list_named_actors() if name.startswith("journal-"))
journal = ray.get_actor(name)
bomb = pickle.dumps(Bomb())
for request in (bomb, bytes(32) + bomb):
    for arguments in ((request,), (request, request)):
        try:
            ray.get(journal.call.remote(*arguments))
        except ray.exceptions.RayTaskError as error:
            print(type(error.cause).__name__)
"""
"""A program that sends the journal requests that it makes without the secret, with pickles that run code."""

SQUATTER = """
import sys
import ray

class Squatter:
    def call(self, *_):
        return b"anything that is not sealed, but long enough to have a digest"

ray.init(address=sys.argv[1], namespace="rollserve", log_to_driver=False)
actor = ray.remote(Squatter).options(name=sys.argv[2], lifetime="detached", num_cpus=0).remote()
ray.get(actor.call.remote())
print("ready", flush=True)
sys.stdin.read()
ray.kill(actor)
"""
"""A program that has an actor under a name until its input ends."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster() as running:
        yield running


def program(text: str, cluster: RayCluster, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", text, cluster.address, *arguments]
    environment = {**os.environ, **cluster.environment}
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def secret_file(folder: Path, secret: str) -> tuple[str, str]:
    file = folder / f"secret-{secret[0]}"
    file.write_text(f"{secret}\n")
    return "--sampler-secret-file", str(file)


@pytest.mark.slow
def test_servers_without_the_secret_neither_take_over_nor_end_the_sampler(cluster: RayCluster, tmp_path: Path) -> None:
    own, other = secret_file(tmp_path, "a" * 32), secret_file(tmp_path, "b" * 32)
    with cluster_server(cluster, tmp_path, *OPTIONS, *own) as server:
        with rollserve.connect(server.address) as sampler:
            sampler.update_agent(rollserve.RandomAgent())
        with program(INTRUDER, cluster, str(tmp_path / "ran")) as intruder:
            assert intruder.stdout is not None
            assert intruder.stdout.read().split() == ["ForgedMessageError"] * 4
        assert not (tmp_path / "ran").exists()
    before = cluster.actors()
    assert len(before) == 2
    for options in ((), other, (*other, "--no-adopt"), ("--no-adopt",)):
        with (
            pytest.raises(RuntimeError, match=r"cannot serve error=.sampler_secret_file: "),
            cluster_server(cluster, tmp_path, *OPTIONS, *options),
        ):
            pass
    assert cluster.actors() == before
    with cluster_server(cluster, tmp_path, *OPTIONS, *own) as server:
        with rollserve.connect(server.address) as sampler:
            assert sampler.status().policy_version == 1
        assert cluster.actors() == before
        server.process.terminate()
        assert server.process.wait(30) == 0
    assert soon(lambda: not cluster.actors())


@pytest.mark.slow
def test_server_refuses_an_actor_with_the_journals_name(cluster: RayCluster, tmp_path: Path) -> None:
    name = journal_name(SamplerIdentity.of(b"a" * 32, NAMESPACE).tag)
    with program(SQUATTER, cluster, name) as squatter:
        assert squatter.stdout is not None
        assert squatter.stdout.readline() == "ready\n"
        with (
            pytest.raises(RuntimeError, match=r"cannot serve error=.journal: expected an actor that knows"),
            cluster_server(cluster, tmp_path, *OPTIONS, *secret_file(tmp_path, "a" * 32)),
        ):
            pass


def test_identities_differ_between_secrets_and_namespaces() -> None:
    identities = [SamplerIdentity.of(secret, name) for secret in (b"", b"a" * 32, b"b" * 32) for name in ("x", "y")]
    assert len({identity.tag for identity in identities}) == len({identity.key for identity in identities}) == 6
    assert SamplerIdentity.of(b"a" * 32, "x") == identities[2]


def test_messages_are_only_opened_with_their_key() -> None:
    message = Seal(b"key").sealed([b"one", memoryview(b"two")])
    assert Seal(b"key").opened(message) == b"onetwo"
    for key, forged in ((b"other", message), (b"key", message[:-1]), (b"key", b""), (b"key", pickle.dumps(1))):
        with pytest.raises(ForgedMessageError):
            Seal(key).opened(forged)
