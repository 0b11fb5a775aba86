"""Work that takes long: agents on trial hold nobody up, and clients hear that the server is at work."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from onnx_models import HEAD
from pools import cartpole_agent, pool_of, sample, sample_request
from support import raises

import rollserve
from rollserve_server.agents import OnnxModel, RandomSpec
from rollserve_server.errors import InvalidValueError
from rollserve_server.pool import AtLeast, Delivery, InProcessBackend, Progress
from rollserve_server.pool.versions import agent_updates


@pytest.fixture
def trial(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """What the trial of an agent waits for."""
    ends, prepare = threading.Event(), agent_updates.prepare_for_env

    def prepare_late(*arguments: Any) -> Any:
        assert ends.wait(60)
        return prepare(*arguments)

    monkeypatch.setattr(agent_updates, "is_quick_to_prepare", lambda agent: isinstance(agent, RandomSpec))
    monkeypatch.setattr(agent_updates, "prepare_for_env", prepare_late)
    return ends


async def test_agent_is_tried_again_if_the_environment_has_changed_meanwhile(trial: threading.Event) -> None:
    async with pool_of(InProcessBackend()) as pool:
        updating = asyncio.create_task(pool.update_agent([cartpole_agent()]))
        await asyncio.sleep(0.1)
        await pool.update_env([rollserve.EnvSpec("Acrobot-v1")])
        trial.set()
        with raises(InvalidValueError, field="all_workers.agent.mlp.layer_sizes[0]"):
            await updating
        assert pool.status().policy_version == 0


async def test_calls_of_a_client_have_one_agent_on_trial(
    trial: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried, prepare = [], agent_updates.prepare_for_env

    def prepare_noted(agent: Any, *arguments: Any) -> Any:
        tried.append(agent.data)
        return prepare(agent, *arguments)

    monkeypatch.setattr(agent_updates, "prepare_for_env", prepare_noted)
    async with pool_of(InProcessBackend()) as pool:
        calls = []
        for peer in ("greedy", "greedy", "greedy", "other"):
            model = OnnxModel(peer.encode(), {}, {}, HEAD, ())
            request = dataclasses.replace(sample_request(AtLeast(1)), agent_update=model)
            calls.append(asyncio.create_task(anext(pool.sample(request, client(peer)))))
            await asyncio.sleep(0.1)
        assert tried == [b"greedy", b"other"]
        trial.set()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(outcome, InvalidValueError) for outcome in outcomes)  # they are no models
        assert tried == [b"greedy", b"other", b"greedy", b"greedy"]


def client(peer: str) -> Any:
    """Return a receiver that reads everything at once, whom calls are charged to."""
    return SimpleNamespace(peer=peer, charged_to=(peer,), stalled_since=None, end=lambda _: None)


async def test_call_tells_that_its_agent_is_on_trial(trial: threading.Event) -> None:
    async with pool_of(InProcessBackend(), progress_seconds=0.05) as pool:
        request = dataclasses.replace(sample_request(AtLeast(10)), agent_update=cartpole_agent())
        async with contextlib.aclosing(pool.sample(request)) as items:
            assert [await anext(items) for _ in range(3)] == [Progress(0)] * 3
            trial.set()
            assert any([isinstance(item, Delivery) async for item in items])


async def test_call_tells_that_a_worker_is_in_a_long_step() -> None:
    slow = rollserve.EnvSpec("sample_envs:Slow", {"step_seconds": 1.0, "length": 1})
    options = {"workers": 1, "rows": 1, "progress_seconds": 0.05, "allow_module": ("sample_envs",)}
    async with pool_of(InProcessBackend(), slow, **options) as pool:
        await pool.update_agent([RandomSpec()])
        async with contextlib.aclosing(pool.sample(sample_request(AtLeast(1)))) as items:
            received = [type(item) async for item in items]
        assert received.count(Progress) >= 5
        assert (await sample(pool, AtLeast(1))).num_steps == 1
