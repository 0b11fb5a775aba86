"""The asyncio client behaves like the synchronous one."""

from __future__ import annotations

import asyncio
import gc
import inspect

import pytest
from cutting_proxy import cutting_proxy
from support import equal, raises, silent_address

import rollserve
from rollserve import Reason
from rollserve_server.local import LocalServer


async def test_async_client_returns_the_same_results(server: LocalServer) -> None:
    with rollserve.connect(server.address) as sampler:
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
            with raises(rollserve.PreconditionError, field="account"):
                stream.end()
            parts = [part async for part in stream]
            assert sum(part.num_steps for part in parts) == stream.end().num_steps == batch.num_steps
            status = await asynchronous.status()
            assert status.policy_version == version + 1


async def test_join_returns_the_rest_of_a_stream(sampler: rollserve.Sampler, server: LocalServer) -> None:
    whole = sampler.obtain_samples(3000, seed=3)
    with (
        rollserve.connect(server.address, max_message_bytes=20_000) as connected,
        connected.stream_samples(3000, seed=3) as stream,
    ):
        parts = [next(stream), stream.join()]
    async with (
        rollserve.aconnect(server.address, max_message_bytes=20_000) as asynchronous,
        asynchronous.stream_samples(3000, seed=3) as async_stream,
    ):
        async_parts = [await anext(async_stream), await async_stream.join()]
    for first, rest in (parts, async_parts):
        assert equal(rollserve.EpisodeBatch.concatenate(first, rest).joined(), whole)
        assert rest.account.num_steps == whole.num_steps


async def test_async_client_raises_the_same_errors(sampler: rollserve.Sampler, server: LocalServer) -> None:
    async with rollserve.aconnect(server.address) as asynchronous:
        with raises(rollserve.InvalidArgumentError, field="step_count", reason=Reason.INVALID_VALUE):
            await asynchronous.obtain_samples(0)
        with raises(rollserve.InvalidArgumentError, reason=Reason.ENV_NOT_FOUND, quotes="'Nope-v0'"):
            await asynchronous.update_env("Nope-v0")
        with raises(rollserve.PreconditionError, field="options.expected_policy_version"):
            await asynchronous.obtain_samples(1, expected_policy_version=10**6)
    async with rollserve.aconnect("127.0.0.1:1") as nowhere:
        with pytest.raises(rollserve.UnavailableError):
            await nowhere.status()


async def test_timeout_and_cancellation_cancel_the_call(sampler: rollserve.Sampler, server: LocalServer) -> None:
    sampler.update_env("sample_envs:Slow", kwargs={"step_seconds": 0.2, "length": 1000})
    sampler.update_agent(rollserve.RandomAgent())
    before = sampler.status().counters.num_cancelled_calls
    async with rollserve.aconnect(server.address) as asynchronous:
        with raises(rollserve.DeadlineError, reason=Reason.NO_PROGRESS):
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


async def test_close_ends_calls_and_rejects_later_ones(server: LocalServer, sampler: rollserve.Sampler) -> None:
    sampler.update_env("sample_envs:Slow", kwargs={"step_seconds": 0.1, "length": 1000})
    sampler.update_agent(rollserve.RandomAgent())
    asynchronous = rollserve.aconnect(server.address)
    stream = asynchronous.stream_samples(1)
    reading = asyncio.create_task(anext(stream))
    await asyncio.sleep(0.3)
    stream.close()
    with raises(rollserve.CancelledError, quotes="stream"):
        await reading
    with raises(rollserve.CancelledError, quotes="stream"):
        await anext(stream)
    obtaining = asyncio.create_task(asynchronous.obtain_samples(1))
    updating = asyncio.create_task(
        asynchronous.update_env("sample_envs:Slow", kwargs={"step_seconds": 0.1, "length": 1000})
    )
    await asyncio.sleep(0)  # both have begun
    await asyncio.sleep(0)
    await asynchronous.close()
    for task in (obtaining, updating):
        with pytest.raises(rollserve.CancelledError):
            await task
    with raises(rollserve.CancelledError, quotes="sampler"):
        await asynchronous.status()
    with raises(rollserve.CancelledError, quotes="sampler"):
        asynchronous.stream_samples(1)


async def test_timeouts_of_asyncio_apply(server: LocalServer, sampler: rollserve.Sampler) -> None:
    sampler.update_env("sample_envs:Slow", kwargs={"step_seconds": 0.1, "length": 1000})
    sampler.update_agent(rollserve.RandomAgent())
    async with rollserve.aconnect(server.address) as asynchronous:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await asynchronous.obtain_samples(1)
        stream = asynchronous.stream_samples(1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(stream), 0.3)


async def test_closed_stream_is_not_resumed(sampler: rollserve.Sampler, server: LocalServer) -> None:
    with cutting_proxy(server.address, num_cuts=10**6, max_bytes=800_000, seed=0) as proxy:
        async with rollserve.aconnect(proxy.address) as distant:
            stream = distant.stream_samples(100_000_000, seed=3)
            asyncio.get_running_loop().call_later(1, stream.close)
            with raises(rollserve.CancelledError, quotes="stream"):
                async for _ in stream:
                    pass


async def test_abandoned_stream_is_cancelled(server: LocalServer, sampler: rollserve.Sampler) -> None:
    sampler.update_env("sample_envs:Slow", kwargs={"step_seconds": 0.02, "length": 5})
    sampler.update_agent(rollserve.RandomAgent())
    before = sampler.status().counters.num_cancelled_calls
    async with rollserve.aconnect(server.address) as asynchronous:
        async for _ in asynchronous.stream_samples(100_000):
            break
        gc.collect()
        for _ in range(100):
            if sampler.status().counters.num_cancelled_calls > before:
                break
            await asyncio.sleep(0.05)
        assert sampler.status().counters.num_cancelled_calls == before + 1


def test_stream_may_outlive_its_event_loop(server: LocalServer, sampler: rollserve.Sampler) -> None:
    async def open_stream() -> list[rollserve.AsyncSampleStream]:
        async with rollserve.aconnect(server.address) as asynchronous:
            stream = asynchronous.stream_samples(1000)
            await anext(stream)
            return [stream]

    streams = asyncio.run(open_stream())
    del streams[:]
    gc.collect()


@pytest.mark.parametrize("seconds", [float("inf"), 1e300])
async def test_time_limits_may_be_infinite(server: LocalServer, sampler: rollserve.Sampler, seconds: float) -> None:
    async with rollserve.aconnect(server.address, timeout=seconds) as unlimited:
        version = await unlimited.update_agent(rollserve.RandomAgent())
        assert (await unlimited.status(timeout=seconds)).policy_version == version
        assert (await unlimited.obtain_samples(100, deadline=seconds)).num_steps >= 100


async def test_deadline_error_names_the_limit(server: LocalServer, sampler: rollserve.Sampler) -> None:
    sampler.update_env("sample_envs:Slow", kwargs={"step_seconds": 0.1, "length": 1000})
    sampler.update_agent(rollserve.RandomAgent())
    async with rollserve.aconnect(server.address) as asynchronous:
        with raises(rollserve.DeadlineError, reason="", match=r"^deadline: .*0\.3 s"):
            await asynchronous.obtain_samples(1, deadline=0.3)
    with silent_address() as address:
        async with rollserve.aconnect(address) as silent:
            with raises(rollserve.DeadlineError, reason="", match=r"^timeout: .*0\.3 s"):
                await silent.status(timeout=0.3)


def test_both_clients_have_the_same_methods_and_parameters() -> None:
    def methods(cls: type) -> dict[str, list[str]]:
        public = inspect.getmembers(cls, inspect.isfunction)
        return {name: list(inspect.signature(member).parameters) for name, member in public if not name.startswith("_")}

    assert methods(rollserve.Sampler) == methods(rollserve.AsyncSampler)
    assert methods(rollserve.SampleStream) == methods(rollserve.AsyncSampleStream)
