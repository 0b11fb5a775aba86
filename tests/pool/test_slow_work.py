"""Work that takes long: agents on trial hold nobody up, and clients hear that the server is at work."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pools import pool_of, sample, sample_request, until
from support import raises

import rollserve
from rollserve_server.agents import InstalledFactory, PythonSource, RandomSpec
from rollserve_server.errors import InvalidValueError
from rollserve_server.pool import AtLeast, Delivery, InProcessBackend, Progress


class Trials:
    """Trials of agents, which end when they may."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def agent(self, name: str = "agent") -> PythonSource:
        return PythonSource(InstalledFactory("awaited", {"folder": str(self._folder), "name": name}), {})

    @property
    def begun(self) -> list[str]:
        """Names of the agents whose trials have begun, in order."""
        path = self._folder / "tried"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.split()[0] for line in dict.fromkeys(lines)]  # a trial makes its agent more than once

    def end(self) -> None:
        (self._folder / "go").touch()


@pytest.fixture
def trials(tmp_path: Path, sandboxes_find_test_agents: None) -> Trials:
    return Trials(tmp_path)


async def test_agent_is_tried_again_if_the_environment_has_changed_meanwhile(trials: Trials) -> None:
    async with pool_of(InProcessBackend()) as pool:
        updating = asyncio.create_task(pool.update_agent([trials.agent()]))
        await until(lambda: len(trials.begun) == 1)
        await pool.update_env([rollserve.EnvSpec("Acrobot-v1")])
        trials.end()
        with raises(InvalidValueError, field="all_workers.agent.python.kwargs_json"):
            await updating
        assert len(trials.begun) == 2
        assert pool.status().policy_version == 0


async def test_calls_of_a_client_have_one_agent_on_trial(trials: Trials) -> None:
    async with pool_of(InProcessBackend(), workers=1) as pool:

        async def call(peer: str) -> bool:
            request = dataclasses.replace(sample_request(AtLeast(1)), agent_update=trials.agent(peer))
            async with contextlib.aclosing(pool.sample(request, client(peer))) as items:
                return any([isinstance(item, Delivery) async for item in items])

        calls = [asyncio.create_task(call("greedy")) for _ in range(2)]
        await until(lambda: len(trials.begun) == 1)
        calls.append(asyncio.create_task(call("other")))
        await until(lambda: len(trials.begun) == 2)
        assert trials.begun == ["greedy", "other"]
        trials.end()
        assert all(await asyncio.gather(*calls))
        assert trials.begun == ["greedy", "other", "greedy"]


def client(peer: str) -> Any:
    """Return a receiver that reads everything at once, whom calls are charged to."""
    return SimpleNamespace(peer=peer, charged_to=(peer,), stalled_since=None, end=lambda _: None)


async def test_call_tells_that_its_agent_is_on_trial(trials: Trials) -> None:
    async with pool_of(InProcessBackend(), progress_seconds=0.05) as pool:
        request = dataclasses.replace(sample_request(AtLeast(10)), agent_update=trials.agent())
        async with contextlib.aclosing(pool.sample(request)) as items:
            assert [await anext(items) for _ in range(3)] == [Progress(0)] * 3
            trials.end()
            assert any([isinstance(item, Delivery) async for item in items])


async def test_call_tells_that_a_worker_is_in_a_long_step() -> None:
    slow = rollserve.EnvSpec("sample_envs:Slow", {"step_seconds": 0.5, "length": 1})
    options = {"workers": 1, "rows": 1, "progress_seconds": 0.05, "allow_module": ("sample_envs",)}
    async with pool_of(InProcessBackend(), slow, **options) as pool:
        await pool.update_agent([RandomSpec()])
        async with contextlib.aclosing(pool.sample(sample_request(AtLeast(1)))) as items:
            received = [type(item) async for item in items]
        assert received.count(Progress) >= 5
        assert (await sample(pool, AtLeast(1))).num_steps == 1
