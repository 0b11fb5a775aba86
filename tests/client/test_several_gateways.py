"""Several gateways behind one target, each with a sampler of its own: clients find the right one."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from certificates import Certificates
from ray_clusters import free_port
from support import equal, raises

import rollserve
from rollserve_server.local import LocalServer, local_server

NAMES = ("left", "right")
HOST = "gateways.lab"
"""A name that stands for 127.0.0.1 and 127.0.0.2 in these tests."""


@contextlib.contextmanager
def gateway(name: str, *options: str, at: str = "127.0.0.1:0") -> Iterator[LocalServer]:
    """Yield a server whose sampler has a name."""
    settings = ("--env", "CartPole-v1", "--backend", "in-process", "--workers", "1", "--rows", "4", "--seed", "7")
    with local_server(*settings, "--sampler-name", name, "--listen", at, *options) as server:
        server.address = f"{at.rpartition(':')[0]}:{server.address.rpartition(':')[2]}"
        yield server


@pytest.fixture(scope="module")
def gateways() -> Iterator[dict[str, LocalServer]]:
    with contextlib.ExitStack() as stack:
        yield {name: stack.enter_context(gateway(name)) for name in NAMES}


@pytest.fixture
def target(gateways: dict[str, LocalServer]) -> str:
    return ",".join(server.address for server in gateways.values())


def resolve(monkeypatch: pytest.MonkeyPatch, hosts: list[str]) -> None:
    """Let a name stand for these addresses."""
    genuine = socket.getaddrinfo

    def getaddrinfo(host: str, port: int, *arguments: Any, **options: Any) -> Any:
        if host != HOST:
            return genuine(host, port, *arguments, **options)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in hosts]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


@pytest.mark.parametrize("name", NAMES)
def test_first_call_of_each_kind_finds_the_gateway(target: str, name: str) -> None:
    with rollserve.connect(target, sampler=name) as sampler:
        sampler.update_agent(rollserve.RandomAgent())
    for call in (
        lambda sampler: sampler.status().sampler == name,
        lambda sampler: sampler.obtain_samples(100).num_steps >= 100,
        lambda sampler: len(sampler.evaluate(3)) == 3,
        lambda sampler: sampler.drive().observe().number == 0,
        lambda sampler: sampler.agent_parameters() == {},
    ):
        with rollserve.connect(target, sampler=name, shared=True) as sampler:
            assert call(sampler)


@pytest.mark.parametrize("name", NAMES)
def test_asyncio_finds_the_gateway(target: str, name: str) -> None:
    async def sample() -> int:
        async with rollserve.aconnect(target, sampler=name) as sampler:
            await sampler.update_agent(rollserve.RandomAgent())
            return (await sampler.obtain_samples(100)).num_steps

    assert asyncio.run(sample()) >= 100


def test_each_sampler_has_its_own_agent(target: str) -> None:
    connected = {name: rollserve.connect(target, sampler=name) for name in NAMES}
    versions = {name: connected[name].status().policy_version for name in NAMES}
    connected["left"].update_agent(rollserve.RandomAgent())
    assert connected["left"].status().policy_version == versions["left"] + 1
    assert connected["right"].status().policy_version == versions["right"]


def test_copies_and_threads_find_the_gateway(target: str) -> None:
    with rollserve.connect(target, sampler="right") as sampler:
        with pickle.loads(pickle.dumps(sampler)) as copy:
            assert copy.status().sampler == "right"
        found: list[str] = []
        threads = [threading.Thread(target=lambda: found.append(sampler.status().sampler)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == ["right"] * 8


def test_unknown_sampler_is_refused(target: str, gateways: dict[str, LocalServer]) -> None:
    with rollserve.connect(target, sampler="middle") as sampler:
        with raises(rollserve.InvalidArgumentError, reason=rollserve.Reason.SAMPLER_NOT_FOUND, quotes="'middle'"):
            sampler.status()
        with raises(rollserve.InvalidArgumentError, reason=rollserve.Reason.SAMPLER_NOT_FOUND):
            sampler.obtain_samples(10)
    # A gateway that is away may have the sampler.
    away = f"127.0.0.1:{free_port()}"
    for several in (f"{away},{gateways['left'].address}", f"{gateways['left'].address},{away}"):
        with rollserve.connect(several, sampler="right") as sampler, raises(rollserve.UnavailableError):
            sampler.status()
        with rollserve.connect(several, sampler="left") as sampler:
            assert sampler.status().sampler == "left"


def test_request_without_a_name_is_for_the_servers_own_sampler(gateways: dict[str, LocalServer]) -> None:
    for name, server in gateways.items():
        with rollserve.connect(server.address) as sampler:
            assert sampler.status().sampler == name


@pytest.mark.slow
def test_name_stands_for_all_of_its_addresses_also_with_tls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made, port = Certificates(tmp_path / "made"), free_port()
    made.write("server", made.authority.server([HOST], days=1))
    resolve(monkeypatch, ["127.0.0.1", "127.0.0.2"])
    with contextlib.ExitStack() as stack:
        for position, each in enumerate(NAMES):
            stack.enter_context(gateway(each, *made.server, at=f"127.0.0.{position + 1}:{port}"))
        for name in NAMES:
            with rollserve.connect(f"dns:///{HOST}:{port}", sampler=name, **made.ca) as sampler:
                assert sampler.status().sampler == name


def test_unknown_name_is_unavailable() -> None:
    sampler = rollserve.connect("dns:///nowhere.invalid:50051")
    with sampler, raises(rollserve.UnavailableError, field="target", quotes="nowhere.invalid"):
        sampler.status()


@pytest.mark.slow
def test_sampler_is_found_again_after_its_gateway_has_moved(gateways: dict[str, LocalServer]) -> None:
    """The new gateway has the same seed, so that the same episodes come from it."""
    first, second = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    target = f"{gateways['left'].address},{first},{second}"
    with rollserve.connect(target, sampler="moving", timeout=60) as sampler:
        with gateway("moving", at=first):
            sampler.update_agent(rollserve.RandomAgent())
            expected = sampler.obtain_samples(300, seed=3)
        with contextlib.ExitStack() as stack:  # nobody has the sampler until the next gateway has started
            starting = threading.Thread(target=lambda: stack.enter_context(gateway("moving", at=second)))
            starting.start()
            sampler.update_agent(rollserve.RandomAgent())
            assert equal(sampler.obtain_samples(300, seed=3), expected)
            starting.join()


@pytest.mark.parametrize("target", ["a:1,", "a:1,b", "a:1,,b:2", ",", "dns:///a", "dns:///a:1,b:2", "a,b:1"])
def test_malformed_target_is_refused(target: str) -> None:
    with raises(rollserve.InvalidArgumentError, field="target"):
        rollserve.connect(target)
