"""Environments of dm_env in hosts, and those that servers of dm_env_rpc have, beside a plain loop."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from dm_env_rpc_server import Worlds, serving
from pools import pool_of, sample
from sample_dm_env import Catch
from support import raises, server_environment

import rollserve
from rollserve import EnvSpec, Reason, Reproducibility
from rollserve_server.agents import RandomSpec
from rollserve_server.errors import InvalidValueError, NotAllowedError
from rollserve_server.local import local_server
from rollserve_server.pool import AtLeast, InProcessBackend

pytestmark = pytest.mark.usefixtures("sandboxes_find_test_agents")
NUMBERS = ["board", "speed", "ball.row"]
"""The observations of the server that are numbers."""
SHORT = {"rows": 6, "limit": 3}


@pytest.fixture(scope="module")
def worlds() -> Iterator[Worlds]:
    with serving(Catch) as worlds:
        yield worlds


def check_episodes(batch: rollserve.EpisodeBatch, **arguments: int) -> None:
    """Check each episode of a batch against a plain loop over `Catch`, to the last bit."""
    assert len(batch) > 5
    for episode in batch.split():
        env = Catch(int(episode.env_seeds[0]) % 2**32, **arguments)  # type: ignore[index]
        step = env.reset()
        for position in range(episode.num_steps):
            seen = {name: column[position] for name, column in episode.observations.items()}
            assert seen["board"].tobytes() == step.observation["board"].tobytes()
            assert seen["speed"].tobytes() == step.observation["speed"].tobytes()
            assert seen["ball/row"] == step.observation["ball"]["row"]
            wind, paddle = (episode.actions[name][position] for name in ("wind", "paddle"))
            step = env.step({"wind": wind, "paddle": np.int8(paddle)})
            assert episode.rewards[position] == step.reward
        assert step.last()
        assert bool(episode.terminated[0]) == (step.discount == 0)
        assert bool(episode.truncated[0]) == (step.discount != 0)
    assert batch.truncated.all() if arguments else batch.terminated.all()


@pytest.mark.parametrize("arguments", [{}, SHORT], ids=["terminated", "truncated"])
def test_episodes_of_dm_env_equal_a_plain_loop(tmp_path: Path, arguments: dict[str, int]) -> None:
    profiles = {"catch": {"env": "sample_dm_env:Catch", "env_kwargs": arguments, "python": sys.executable}}
    options = ("--env", "CartPole-v1", "--backend", "in-process", "--workers", "2", "--profiles", json.dumps(profiles))
    with (
        local_server(*options, log=tmp_path / "server.log", environment=server_environment()) as server,
        rollserve.connect(server.address) as sampler,
    ):
        assert sampler.update_env("profile:catch").reproducibility is Reproducibility.EPISODE
        sampler.update_agent(rollserve.RandomAgent())
        check_episodes(sampler.obtain_samples(100, seed=1), **arguments)


@pytest.mark.parametrize("arguments", [{}, SHORT], ids=["terminated", "truncated"])
async def test_episodes_of_dm_env_rpc_equal_a_plain_loop(worlds: Worlds, arguments: dict[str, int]) -> None:
    address = f"dm_env_rpc://{worlds.address}"
    async with pool_of(InProcessBackend(), allow_host=(address,)) as pool:
        kwargs = {"world": arguments, "join": {"name": "Ann"}, "seed_setting": "seed", "observations": NUMBERS}
        updated = await pool.update_env([EnvSpec(address, kwargs)])
        assert updated.description.reproducibility is Reproducibility.EPISODE
        await pool.update_agent([RandomSpec()])
        check_episodes(await sample(pool, AtLeast(100), seed=1), **arguments)
        assert len(worlds.open) == 8  # one for each row
    assert not worlds.open


async def test_worlds_without_seeds_are_not_reproducible(worlds: Worlds) -> None:
    address = f"dm_env_rpc://{worlds.address}"
    async with pool_of(InProcessBackend(), workers=1, allow_host=(address,)) as pool:
        updated = await pool.update_env([EnvSpec(address, {"observations": ["speed"]})])
        assert updated.description.reproducibility is Reproducibility.WORKER
        await pool.update_agent([RandomSpec()])
        before = worlds.num_made
        batch = await sample(pool, AtLeast(100), seed=1)
    assert worlds.num_made == before
    assert len(set(batch.observations["speed"])) == len(batch)


@pytest.fixture
def listening(worlds: Worlds) -> Iterator[str]:
    """The address of a host that adapts the server."""
    command = [sys.executable, "-m", "rollserve_env_host", f"dm_env_rpc://{worlds.address}", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            found = re.fullmatch(r"listening on (.+)\n", process.stdout.readline())
            assert found is not None
            yield f"rows://{found[1]}"
        finally:
            process.kill()


async def test_listening_host_adapts_dm_env_rpc(listening: str) -> None:
    async with pool_of(InProcessBackend(), allow_host=(listening,)) as pool:
        await pool.update_env([EnvSpec(listening, {"seed_setting": "seed", "observations": NUMBERS})])
        await pool.update_agent([RandomSpec()])
        check_episodes(await sample(pool, AtLeast(100), seed=1))


async def test_world_that_is_lost_is_made_again(worlds: Worlds) -> None:
    address = f"dm_env_rpc://{worlds.address}"
    async with pool_of(InProcessBackend(), workers=1, rows=2, allow_host=(address,)) as pool:
        await pool.update_env([EnvSpec(address, {"seed_setting": "seed", "observations": NUMBERS})])
        await pool.update_agent([RandomSpec()])
        await sample(pool, AtLeast(10), seed=1)
        worlds.hang_up()
        check_episodes(await sample(pool, AtLeast(100), seed=2))


async def test_servers_that_are_not_allowed_are_not_dialled(worlds: Worlds) -> None:
    async with pool_of(InProcessBackend(), allow_host=("dm_env_rpc://127.0.0.1:1",)) as pool:
        with raises(NotAllowedError, reason=Reason.HOST_NOT_ALLOWED, quotes="--allow-host"):
            await pool.update_env([EnvSpec(f"dm_env_rpc://{worlds.address}")])


async def test_what_a_server_refuses_is_told(worlds: Worlds) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        nowhere = f"dm_env_rpc://127.0.0.1:{free.getsockname()[1]}"
    address = f"dm_env_rpc://{worlds.address}"
    async with pool_of(InProcessBackend(), allow_host=(address, nowhere)) as pool:
        for spec, quotes in (
            (EnvSpec(nowhere), "UNAVAILABLE"),
            (EnvSpec(address), "note: expected numbers of one shape"),
            (EnvSpec(address, {"observations": ["bord"]}), "bord"),
            (EnvSpec(address, {"world": {"rouws": 3}}), "rouws"),
            (EnvSpec(address, {"join": {"nam": "Ann"}}), "unknown settings"),
            (EnvSpec(address, {"seed": 1}), "unexpected keyword argument 'seed'"),
        ):
            with raises(InvalidValueError, reason=Reason.ENV_REFUSED, quotes=quotes):
                await pool.update_env([spec])
    assert not worlds.open
