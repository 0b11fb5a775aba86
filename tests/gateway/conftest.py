"""Fixtures of tests of requests and answers, which need no processes of workers."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest
from support import Sampled

import rollserve
from rollserve_server.local import LocalServer
from rollserve_wire.v1.sampler_service_pb2_grpc import SamplerServiceStub


@pytest.fixture(scope="session")
def server(light_server: LocalServer) -> LocalServer:
    return light_server


class Unchanged:
    """The shared server's sampler, with CartPole-v1 and an untrained agent, for tests that change nothing of it.

    It is prepared once for many tests: it is checked after each of them, and one that another test changed since then
    is prepared again.
    """

    def __init__(self, sampler: rollserve.Sampler) -> None:
        self._sampler = sampler
        self._before: Sampled | None = None

    def prepare(self) -> None:
        if self._before is None or not self._before.has_same_versions():
            updated = self._sampler.update_env("CartPole-v1")
            agent = rollserve.MlpAgent.initial(updated.observation_space, updated.action_space, seed=0)
            self._sampler.update_agent(agent)
            self._before = Sampled(self._sampler)

    def check(self) -> None:
        assert self._before is not None
        self._before.check()


@pytest.fixture(scope="session")
def unchanged_sampler(server: LocalServer) -> Iterator[Unchanged]:
    with rollserve.connect(server.address, shared=True) as sampler:
        yield Unchanged(sampler)


@pytest.fixture
def unchanged_stub(unchanged_sampler: Unchanged, server: LocalServer) -> Iterator[SamplerServiceStub]:
    """The generated stub of the shared server, of whose sampler the test changes nothing; that is checked."""
    unchanged_sampler.prepare()
    with grpc.insecure_channel(server.address) as channel:
        yield SamplerServiceStub(channel)
    unchanged_sampler.check()
