"""Samplers and streams as objects: how they are shown, copied to other processes, and what their errors show."""

from __future__ import annotations

import asyncio
import pickle
import traceback
from collections.abc import Callable
from typing import Any

import pytest
from scripted_server import scripted_server
from spawned import awaited, in_spawned_process
from support import equal, raises, silent_address

import rollserve
from rollserve._calls.rpc_errors import METHODS
from rollserve_server.local import LocalServer
from rollserve_wire.v1 import sampler_service_pb2 as pb


def test_sampler_shows_its_address(server: LocalServer) -> None:
    with rollserve.connect(server.address) as sampler:
        assert repr(sampler) == f"<Sampler '{server.address}'>"
    assert repr(sampler) == f"<Sampler '{server.address}', closed>"
    assert repr(rollserve.connect("unix:/a/b", sampler="c")) == "<Sampler 'unix:/a/b', sampler 'c'>"
    assert repr(rollserve.aconnect(server.address)) == f"<AsyncSampler '{server.address}'>"


def test_stream_shows_its_address(sampler: rollserve.Sampler, server: LocalServer) -> None:
    with sampler.stream_samples(100) as stream:
        account = stream.join().account
        assert repr(stream) == f"<SampleStream from '{server.address}', {account.num_simulated_steps} steps simulated>"


def test_sampler_connects_in_a_spawned_process(sampler: rollserve.Sampler) -> None:
    batch = in_spawned_process(sampler.obtain_samples, 100, seed=3)
    expected = sampler.obtain_samples(100, seed=3)
    assert equal(batch, expected)
    assert batch.account.num_steps == expected.num_steps


def test_async_sampler_connects_in_a_spawned_process(sampler: rollserve.Sampler, server: LocalServer) -> None:
    batch = in_spawned_process(awaited, rollserve.aconnect(server.address), "obtain_samples", 100, seed=3)
    assert equal(batch, sampler.obtain_samples(100, seed=3))


def test_sampler_is_pickled_open_after_it_was_closed(sampler: rollserve.Sampler) -> None:
    sampler.close()
    with pickle.loads(pickle.dumps(sampler)) as copy:
        assert copy.obtain_samples(10).num_steps >= 10
    with raises(rollserve.CancelledError):
        sampler.status()


def test_pickle_carries_the_arguments_of_connect(server: LocalServer) -> None:
    with silent_address() as address:
        original = rollserve.connect(address, sampler="x", timeout=0.2, compression="lz4", max_message_bytes=None)
        restored = pickle.loads(pickle.dumps(original))
        assert repr(restored) == repr(original) == f"<Sampler '{address}', sampler 'x'>"
        with raises(rollserve.DeadlineError, field="timeout", quotes="0.2"):
            restored.status()
    named = pickle.loads(pickle.dumps(rollserve.connect(server.address, sampler="x")))
    with named, raises(rollserve.InvalidArgumentError, reason=rollserve.Reason.SAMPLER_NOT_FOUND, quotes="'x'"):
        named.status()


def test_async_sampler_is_unpickled_without_a_loop(sampler: rollserve.Sampler, server: LocalServer) -> None:
    restored: rollserve.AsyncSampler = pickle.loads(pickle.dumps(rollserve.aconnect(server.address)))

    async def sample() -> rollserve.EpisodeBatch:
        async with restored:
            return await restored.obtain_samples(100, seed=3)

    assert equal(asyncio.run(sample()), sampler.obtain_samples(100, seed=3))


def test_stream_cannot_be_pickled(sampler: rollserve.Sampler, server: LocalServer) -> None:
    with sampler.stream_samples(100) as stream, raises(TypeError, field="stream", quotes="SampleStream"):
        pickle.dumps(stream)

    async def dump() -> None:
        async with rollserve.aconnect(server.address) as connected, connected.stream_samples(100) as stream:
            with raises(TypeError, field="stream", quotes="AsyncSampleStream"):
                pickle.dumps(stream)

    asyncio.run(dump())


FAILING: dict[str, Callable[[rollserve.Sampler], Any]] = {
    "update": lambda sampler: sampler.update_agent({"0/weight": 1.0}),
    "call": lambda sampler: sampler.obtain_samples(0),
    "fragments": lambda sampler: sampler.obtain_fragments(7),
    "evaluation": lambda sampler: sampler.evaluate(0),
    "population": lambda sampler: sampler.evaluate_population({}, 0),
    "parameters": lambda sampler: sampler.agent_parameters(10**9),
    "deadline": lambda sampler: sampler.obtain_samples(10**6, deadline=0.0),
    "unreachable": lambda _: rollserve.connect("127.0.0.1:1", timeout=0.1).status(),
}


@pytest.mark.parametrize("case", FAILING)
def test_error_is_shown_once(sampler: rollserve.Sampler, case: str) -> None:
    with pytest.raises(rollserve.RollserveError) as caught:
        FAILING[case](sampler)
    shown = "".join(traceback.format_exception(caught.value))
    assert shown.count("Traceback (most recent call last)") == 1, shown
    assert "_MultiThreadedRendezvous" not in shown


@pytest.mark.parametrize("case", ["update", "call", "evaluation", "deadline"])
def test_async_error_is_shown_once(sampler: rollserve.Sampler, server: LocalServer, case: str) -> None:
    async def call() -> None:
        async with rollserve.aconnect(server.address) as connected:
            await FAILING[case](connected)  # type: ignore[arg-type]

    with pytest.raises(rollserve.RollserveError) as caught:
        asyncio.run(call())
    assert "".join(traceback.format_exception(caught.value)).count("Traceback (most recent call last)") == 1


def test_error_names_the_method(thread_sampler: rollserve.Sampler) -> None:
    for call in (thread_sampler.obtain_samples, thread_sampler.obtain_fragments, thread_sampler.evaluate):
        with raises(rollserve.PreconditionError, reason=rollserve.Reason.NO_AGENT, quotes="update_agent") as caught:
            call(1)
        assert "UpdateAgent" not in str(caught.value)


def test_methods_of_all_rpcs_are_known() -> None:
    assert set(METHODS) == set(pb.DESCRIPTOR.services_by_name["SamplerService"].methods_by_name)
    assert set(METHODS.values()) <= set(dir(rollserve.Sampler))


NO_PROXY = "127.0.0.1:1"
"""An address where nobody listens."""


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "ipv4:127.0.0.1", "dns:///localhost"])
def test_loopback_is_reached_without_the_proxy(host: str, server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    use_proxy(monkeypatch, NO_PROXY)
    with rollserve.connect(f"{host}:{server.address.rpartition(':')[2]}") as sampler:
        assert sampler.status().num_workers == 2


@pytest.mark.parametrize("variable", ["http_proxy", "grpc_proxy"])
def test_error_names_the_proxy_it_failed_at(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_proxy(monkeypatch, NO_PROXY, variable)
    with (
        rollserve.connect("192.0.2.1:50051", timeout=10) as sampler,
        raises(rollserve.UnavailableError, match=rf"through the proxy of {variable}; no_proxy excepts hosts"),
    ):
        sampler.status()


def use_proxy(monkeypatch: pytest.MonkeyPatch, address: str, variable: str = "http_proxy") -> None:
    for name in ("grpc_proxy", "https_proxy", "http_proxy", "no_grpc_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, f"http://{address}")


def test_new_connection_reaches_a_server_that_is_back() -> None:
    with scripted_server() as address:
        pass
    with rollserve.connect(address, timeout=10) as lost:
        for _ in range(5):  # gRPC's pauses between attempts grow
            with raises(rollserve.UnavailableError):
                lost.agent_versions()
        with scripted_server(int(address.rpartition(":")[2])), rollserve.connect(address, timeout=10) as sampler:
            assert sampler.agent_versions() == ()
