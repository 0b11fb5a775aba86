"""The client for asyncio does what the synchronous one does."""

from __future__ import annotations

import asyncio
import inspect

import pytest
from support import equal

import rollserve
from rollserve_server.local import LocalServer


async def test_the_same_results(sampler: rollserve.Sampler, server: LocalServer) -> None:
    async with rollserve.aconnect(server.address) as asynchronous:
        updated = await asynchronous.update_env("CartPole-v1")
        assert updated.env_version == sampler.status().env_version
        agent = rollserve.MlpAgent.initial(updated.observation_space, updated.action_space, seed=3)
        version = await asynchronous.update_agent(agent)
        assert await asynchronous.update_agent(agent.parameters) == version + 1
        batch = await asynchronous.obtain_samples(3000, seed=9)
        assert equal(batch, sampler.obtain_samples(3000, seed=9))
        exact = await asynchronous.obtain_exact_episodes(3, seed=9)
        assert equal(exact, sampler.obtain_exact_episodes(3, seed=9))
        stream = asynchronous.stream_samples(3000, seed=9)
        parts = [part async for part in stream]
        assert sum(part.num_steps for part in parts) == stream.end().num_steps == batch.num_steps
        status = await asynchronous.status()
        assert status.policy_version == version + 1


async def test_errors_are_the_same(sampler: rollserve.Sampler, server: LocalServer) -> None:
    async with rollserve.aconnect(server.address) as asynchronous:
        with pytest.raises(rollserve.InvalidArgumentError, match="step_count: 0 came") as caught:
            await asynchronous.obtain_samples(0)
        assert caught.value.reason == "INVALID_VALUE"
        with pytest.raises(rollserve.InvalidArgumentError, match="'Nope-v0'"):
            await asynchronous.update_env("Nope-v0")
        with pytest.raises(rollserve.PreconditionError, match="expected_policy_version"):
            await asynchronous.obtain_samples(1, expected_policy_version=10**6)
    async with rollserve.aconnect("127.0.0.1:1") as nowhere:
        with pytest.raises(rollserve.UnavailableError):
            await nowhere.status()


async def test_silence_and_cancellation(sampler: rollserve.Sampler, server: LocalServer) -> None:
    sampler.update_env("sample_envs:Slow", kwargs={"step_seconds": 0.2, "length": 1000})
    sampler.update_agent(rollserve.RandomAgent())
    before = sampler.status().counters.num_cancelled_calls
    async with rollserve.aconnect(server.address) as asynchronous:
        with pytest.raises(rollserve.DeadlineError, match="no progress"):
            await asynchronous.obtain_samples(1, timeout=0.3)
        task = asyncio.create_task(asynchronous.obtain_samples(1))
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        for _ in range(100):
            if sampler.status().counters.num_cancelled_calls == before + 2:
                break
            await asyncio.sleep(0.05)
    assert sampler.status().counters.num_cancelled_calls == before + 2


def test_both_clients_have_the_same_methods() -> None:
    def methods(cls: type) -> dict[str, list[str]]:
        public = inspect.getmembers(cls, inspect.isfunction)
        return {name: list(inspect.signature(member).parameters) for name, member in public if not name.startswith("_")}

    assert methods(rollserve.Sampler) == methods(rollserve.AsyncSampler)
    assert methods(rollserve.SampleStream) == methods(rollserve.AsyncSampleStream)
