"""Clients that share a sampler: none of them samples with the agent or the environment of another one in silence."""

from __future__ import annotations

import asyncio
import concurrent.futures
import pickle
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from mlp_agents import cartpole_agent
from spawned import awaited, in_spawned_process
from support import raises

import rollserve
from rollserve import Reason
from rollserve_server.local import LocalServer, local_server
from rollserve_wire.v1 import sampler_service_pb2 as pb
from rollserve_wire.v1.sampler_service_pb2_grpc import SamplerServiceStub

OPTIONS = (
    *("--env", "CartPole-v1", "--backend", "in-process", "--workers", "1"),
    *("--vectorization", "rows", "--rows", "2", "--seed", "7", "--max-calls", "1"),
)
FOREVER = 10**9
SHORT = rollserve.EnvChange(kwargs={"max_episode_steps": 20})
POLICY, ENV = "expected_policy_version", "expected_environment_version"


MEMBERS = {name: np.stack([value] * 2) for name, value in cartpole_agent().parameters.items()}
UPDATES: dict[str, tuple[str, Any, str]] = {
    "env": ("update_env", "CartPole-v1", ENV),
    "env change": ("update_env", SHORT, ENV),
    "agent": ("update_agent", cartpole_agent(1), POLICY),
    "parameters": ("update_agent", cartpole_agent(1).parameters, POLICY),
}
"""Updates by another client: the method, its argument, and the expectation that they fail."""
CALLS: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "samples": ("obtain_samples", 4, {}),
    "seeded samples": ("obtain_samples", 4, {"seed": 3}),
    "exact episodes": ("obtain_exact_episodes", 1, {}),
    "fragments": ("obtain_fragments", 4, {}),
    "evaluation": ("evaluate", 2, {}),
    "population": ("evaluate_population", MEMBERS, {"num_episodes": 1}),
}
Both = tuple[rollserve.Sampler, rollserve.Sampler]


@pytest.fixture(scope="module")
def shared_server() -> Iterator[LocalServer]:
    """A server that runs one call at a time, so that others wait."""
    with local_server(*OPTIONS) as server:
        yield server


@pytest.fixture
def both(shared_server: LocalServer) -> Iterator[Both]:
    """A client that has set environment and agent, and another one."""
    with rollserve.connect(shared_server.address) as first, rollserve.connect(shared_server.address) as second:
        first.update_env("CartPole-v1")
        first.update_agent(cartpole_agent())
        yield first, second


@pytest.fixture
def stub(shared_server: LocalServer) -> Iterator[SamplerServiceStub]:
    with grpc.insecure_channel(shared_server.address) as channel:
        yield SamplerServiceStub(channel)


def num_simulated_steps(sampler: rollserve.Sampler) -> int:
    return sampler.status().counters.num_simulated_steps


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("update", UPDATES)
def test_call_fails_after_an_update_by_another_client(both: Both, update: str, call: str) -> None:
    (method, argument, field), (name, value, options) = UPDATES[update], CALLS[call]
    first, second = both
    before = first.status()
    getattr(second, method)(argument)
    num_steps = num_simulated_steps(first)
    version = before.env_version if field == ENV else before.policy_version
    quotes = (f"expected {version},", f"got {version + 1},", "connect as shared", "again")
    with raises(rollserve.PreconditionError, field=f"options.{field}", reason=Reason.UNEXPECTED_VERSION, quotes=quotes):
        getattr(first, name)(value, **options)
    assert num_simulated_steps(first) == num_steps
    getattr(first, method)("CartPole-v1" if field == ENV else cartpole_agent())
    getattr(first, name)(value, **options)


# The client that blocks is made from this one, whose code beyond the update and the call is shared.
ASYNC_PAIRS = [
    pytest.param(update, call, marks=() if update == "agent" or call == "samples" else pytest.mark.slow)
    for update in UPDATES
    for call in CALLS
]


@pytest.mark.parametrize(("update", "call"), ASYNC_PAIRS)
async def test_call_of_an_async_client_fails_after_an_update_by_another_client(
    shared_server: LocalServer, both: Both, update: str, call: str
) -> None:
    (method, argument, field), (name, value, options) = UPDATES[update], CALLS[call]
    async with rollserve.aconnect(shared_server.address) as first, rollserve.aconnect(shared_server.address) as second:
        await first.update_env("CartPole-v1")
        await first.update_agent(cartpole_agent())
        await getattr(second, method)(argument)
        with raises(rollserve.PreconditionError, field=f"options.{field}", reason=Reason.UNEXPECTED_VERSION):
            await getattr(first, name)(value, **options)
        await getattr(first, method)("CartPole-v1" if field == ENV else cartpole_agent())
        await getattr(first, name)(value, **options)


@pytest.mark.parametrize("update", UPDATES)
def test_updates_that_build_on_those_of_another_client_fail(both: Both, update: str) -> None:
    first, second = both
    method, argument, field = UPDATES[update]
    getattr(second, method)(argument)
    before = first.status()
    building: dict[str, tuple[str, Any, dict[str, Any], bool]] = {
        "parameters": ("update_agent", cartpole_agent(2).parameters, {}, True),
        "parameters per worker": ("update_agent", None, {"per_worker": [cartpole_agent(2).parameters]}, True),
        "same parameters": ("update_agent", cartpole_agent(1).parameters, {"skip_if_identical": True}, True),
        "agent": ("update_agent", cartpole_agent(2), {}, field == ENV),
        "change": ("update_env", SHORT, {}, field == ENV),
        "change of a row": ("update_env", [rollserve.EnvSpec("CartPole-v1"), None], {}, field == ENV),
    }
    for name, value, options, fails in building.values():
        if fails:
            with raises(rollserve.PreconditionError, field=field, reason=Reason.UNEXPECTED_VERSION):
                getattr(first, name)(value, **options)
    after = first.status()
    assert (after.policy_version, after.env_version) == (before.policy_version, before.env_version)
    assert list(after.agent_kinds) == list(before.agent_kinds)
    for name, value, options, fails in building.values():
        if not fails:
            getattr(first, name)(value, **options)
    # Whole environments and agents replace whatever is there.
    first.update_env("CartPole-v1")
    first.update_agent(cartpole_agent())
    first.obtain_samples(4)


def test_clients_without_expectations_use_what_is_there(shared_server: LocalServer, both: Both) -> None:
    first, second = both
    assert second.obtain_samples(4).policy_versions[0] == first.status().policy_version  # it has set nothing
    with rollserve.connect(shared_server.address, shared=True) as third:
        third.update_env("CartPole-v1")
        third.update_agent(cartpole_agent(1))
        env_version, policy_version = (
            second.update_env(SHORT).env_version,
            second.update_agent(cartpole_agent(2).parameters),
        )
        account = third.obtain_samples(4).account
        assert (account.env_version, account.policy_version) == (env_version, policy_version)
        assert third.evaluate(1).policy_version == policy_version
        assert third.update_agent(cartpole_agent(1).parameters) == policy_version + 1
        with raises(rollserve.PreconditionError, reason=Reason.UNEXPECTED_VERSION):
            second.obtain_samples(4)


def test_calls_that_name_versions_use_them(both: Both) -> None:
    first, second = both
    status = first.status()
    versions: rollserve.SamplingOptions = {
        "policy_version": status.policy_version,
        "env_version": status.env_version,
        "seed": 3,
    }
    before = first.obtain_samples(40, **versions)
    second.update_env(SHORT)
    second.update_agent(cartpole_agent(1))
    again = first.obtain_samples(40, **versions)
    assert np.array_equal(before.observations, again.observations)
    assert first.evaluate(1, policy_version=status.policy_version, env="CartPole-v1").env_version is None
    with raises(rollserve.PreconditionError, field=f"options.{ENV}"):
        first.obtain_samples(4, policy_version=status.policy_version)
    with raises(rollserve.PreconditionError, field=f"options.{POLICY}"):
        first.obtain_samples(4, env_version=status.env_version)


def test_versions_that_the_caller_expects_are_strict(both: Both) -> None:
    first, _ = both
    old, env_version = first.status().policy_version, first.status().env_version
    new = first.update_agent(cartpole_agent(1))
    first.obtain_samples(4, expected_policy_version=new, expected_env_version=env_version)
    for options, field in (({"expected_policy_version": old}, POLICY), ({"expected_env_version": 10**6}, ENV)):
        for name, value in (("obtain_samples", 4), ("evaluate", 1)):
            with raises(rollserve.PreconditionError, field=f"options.{field}", reason=Reason.UNEXPECTED_VERSION):
                getattr(first, name)(value, **options)


def test_same_agent_of_two_clients_is_expected_by_both(both: Both) -> None:
    first, second = both
    assert second.update_agent(cartpole_agent(), skip_if_identical=True) == first.status().policy_version
    first.obtain_samples(4)
    second.obtain_samples(4)
    first.update_agent(cartpole_agent(1))
    with raises(rollserve.PreconditionError, reason=Reason.UNEXPECTED_VERSION):
        second.obtain_samples(4)


def test_call_that_waits_during_an_own_update_uses_the_new_version(both: Both) -> None:
    first, second = both
    with first.stream_samples(FOREVER) as running:
        next(running)
        with first.stream_samples(4) as waiting:
            version = first.update_agent(cartpole_agent(1).parameters)
            env_version = first.update_env(SHORT).env_version
            running.close()
            assert waiting.join().policy_versions[0] == version
            assert waiting.end().env_version == env_version
    with first.stream_samples(FOREVER) as running:
        next(running)
        with first.stream_samples(4) as waiting:
            second.update_agent(cartpole_agent(1))
            running.close()
            with raises(rollserve.PreconditionError, reason=Reason.UNEXPECTED_VERSION):
                next(waiting)


def test_stream_goes_on_after_an_update_by_another_client(both: Both) -> None:
    first, second = both
    version = first.status().policy_version
    with first.stream_samples(20_000) as stream:
        batches = [next(stream)]
        second.update_agent(cartpole_agent(1))
        batches += stream
    assert {int(each) for batch in batches for each in batch.policy_versions} == {version}


def test_threads_of_one_client_disturb_each_other_with_no_update(both: Both) -> None:
    first, _ = both

    def update(round_: int) -> None:
        first.update_agent(cartpole_agent(round_).parameters if round_ % 2 else cartpole_agent(round_))
        if round_ % 4 == 0:
            first.update_env(SHORT)

    def call(round_: int) -> None:
        name, value, options = list(CALLS.values())[round_ % len(CALLS)]
        getattr(first, name)(value, **options)

    with concurrent.futures.ThreadPoolExecutor(8) as executor:
        rounds = [executor.submit(each, round_) for round_ in range(24) for each in (update, call, call)]
        for done in rounds:
            done.result()


async def test_tasks_of_one_client_disturb_each_other_with_no_update(shared_server: LocalServer, both: Both) -> None:
    async with rollserve.aconnect(shared_server.address) as sampler:
        await sampler.update_env("CartPole-v1")
        await sampler.update_agent(cartpole_agent())
        updates = [sampler.update_agent(cartpole_agent(each).parameters) for each in range(16)]
        updates += [sampler.update_agent(cartpole_agent(each)) for each in range(8)]
        changes = [sampler.update_env(SHORT) for _ in range(4)]
        calls = [getattr(sampler, name)(value, **options) for name, value, options in [*CALLS.values()] * 4]
        await asyncio.gather(*updates, *changes, *calls)


def test_ids_of_clients_count_in_other_languages(both: Both, stub: SamplerServiceStub) -> None:
    whole = pb.UpdateAgentRequest(client_id="one")
    whole.all_workers.agent.random.SetInParent()
    old = stub.UpdateAgent(whole).policy_version
    new = stub.UpdateAgent(whole).policy_version

    def sample(**options: Any) -> str:
        request = pb.ObtainSamplesRequest(step_count=1, options=pb.SamplingOptions(**options))
        try:
            list(stub.ObtainSamples(request))
        except grpc.RpcError as error:
            return dict(error.trailing_metadata() or ())["rollserve-reason"]  # type: ignore[attr-defined]
        return "ok"

    assert sample(expected_policy_version=new) == "ok"
    assert sample(expected_policy_version=old) == "UNEXPECTED_VERSION"
    assert sample(expected_policy_version=old, client_id="one") == "ok"  # its own update has overtaken the call
    assert sample(expected_policy_version=new, client_id="two") == "UNEXPECTED_VERSION"
    assert sample(client_id="two") == "ok"
    assert sample(client_id="x" * 65) == "INVALID_VALUE"


def test_versions_of_an_earlier_run_are_not_those_of_another_client(shared_server: LocalServer) -> None:
    shared_server.reset()
    with rollserve.connect(shared_server.address) as first, rollserve.connect(shared_server.address) as second:
        first.update_env("CartPole-v1")
        version = first.update_agent(cartpole_agent())
        shared_server.reset()
        second.update_env("CartPole-v1")
        with raises(rollserve.PreconditionError, reason=Reason.NO_AGENT):
            first.obtain_samples(4)
        with raises(rollserve.PreconditionError, reason=Reason.NO_AGENT):
            first.update_agent(cartpole_agent().parameters)
        assert second.update_agent(cartpole_agent(1)) == version
        with raises(rollserve.PreconditionError, field=f"options.{POLICY}", reason=Reason.UNEXPECTED_VERSION):
            first.obtain_samples(4)
        first.update_env("CartPole-v1")
        first.update_agent(cartpole_agent())
        first.obtain_samples(4)


def test_unpickled_sampler_counts_as_the_same_client(both: Both) -> None:
    first, second = both
    copy: rollserve.Sampler = pickle.loads(pickle.dumps(first))
    with copy:
        copy.update_agent(cartpole_agent(2).parameters)
        assert first.obtain_samples(4).num_steps >= 4
        second.update_agent(cartpole_agent(3))
        for client in (first, copy):
            with raises(rollserve.PreconditionError, reason=Reason.UNEXPECTED_VERSION):
                client.obtain_samples(4)


def test_sampler_in_a_spawned_process_counts_as_the_same_client(both: Both) -> None:
    first, second = both
    version = in_spawned_process(first.update_agent, cartpole_agent(2).parameters)
    assert first.obtain_samples(4).policy_versions[0] == version
    assert in_spawned_process(first.obtain_samples, 4).policy_versions[0] == version
    second.update_agent(cartpole_agent(3))
    for sample in (in_spawned_process, lambda function, argument: function(argument)):
        with raises(rollserve.PreconditionError, reason=Reason.UNEXPECTED_VERSION):
            sample(first.obtain_samples, 4)


def test_copy_of_an_async_client_expects_what_was_set_before_it_was_pickled(
    shared_server: LocalServer, both: Both
) -> None:
    first = rollserve.aconnect(shared_server.address)

    async def update_and_copy() -> list[bytes]:
        async with first:
            copies = [pickle.dumps(first)]
            await first.update_env("CartPole-v1")
            await first.update_agent(cartpole_agent())
            return [*copies, pickle.dumps(first)]

    before, after = asyncio.run(update_and_copy())
    both[1].update_agent(cartpole_agent(1))
    assert awaited(pickle.loads(before), "obtain_samples", 4).num_steps >= 4  # it has set nothing
    with raises(rollserve.PreconditionError, reason=Reason.UNEXPECTED_VERSION):
        awaited(pickle.loads(after), "obtain_samples", 4)


def test_client_that_has_set_only_an_agent_expects_its_environment(shared_server: LocalServer, both: Both) -> None:
    _, second = both
    with rollserve.connect(shared_server.address) as first:
        first.update_agent(rollserve.RandomAgent())
        first.obtain_samples(4)
        second.update_env("Acrobot-v1")
        for name, argument, options in (CALLS["samples"], CALLS["fragments"], CALLS["evaluation"]):
            with raises(rollserve.PreconditionError, field=f"options.{ENV}", reason=Reason.UNEXPECTED_VERSION):
                getattr(first, name)(argument, **options)
        first.update_agent(rollserve.RandomAgent())  # accepts the present environment
        assert first.obtain_samples(4).observations.shape[1:] == (6,)


def test_environment_that_is_gone_with_its_run_is_no_other_clients() -> None:
    with local_server(*OPTIONS) as server:
        address = server.address
        first = rollserve.connect(address)
        first.update_env(SHORT)
    with first, local_server(*OPTIONS, "--listen", address):
        with raises(rollserve.PreconditionError, field=ENV, reason=Reason.SAMPLER_RUN):
            first.update_agent(cartpole_agent())
        first.update_env("CartPole-v1")
        first.update_agent(cartpole_agent())
        first.obtain_samples(4)
