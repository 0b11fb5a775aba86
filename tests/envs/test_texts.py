"""Observations of Text spaces: code points from the environment to the client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from fragment_calls import MODULES, fragments, in_calls
from mlp_agents import spec_of
from pools import pool_of, sample
from python_agents import prepared
from sample_envs import Talking
from support import equal, raises, server_environment
from unreliable import MortalBackend

import rollserve
from rollserve_server.agents import PythonSpec, RandomSpec, build_agent
from rollserve_server.errors import EnvFailedError, InvalidValueError
from rollserve_server.local import LocalServer, local_server
from rollserve_server.pool import AtLeast, InProcessBackend
from rollserve_server.sampling import ColumnFormat
from rollserve_wire.v1.tensor_pb2 import COMPRESSION_LZ4

TALKING = rollserve.EnvSpec("sample_envs:Talking")
ALONE = rollserve.EnvSpec("sample_envs:Talking", {"alone": True})
SPACE = rollserve.spaces.Text(9, 0, "".join(sorted("abcxyz äß€😀")))


def plain_texts(episode: rollserve.EpisodeBatch, alone: bool) -> list[str]:
    """Return the texts that the environment shows for the actions of an episode, without any server."""
    env = Talking(alone=alone)
    assert episode.env_seeds is not None
    observation, _ = env.reset(seed=int(episode.env_seeds[0]))
    actions = episode.actions.tolist()  # type: ignore[union-attr]
    observations = [observation, *(env.step(action)[0] for action in actions)]
    return observations if alone else [observation["said"][0] for observation in observations]


def texts(columns: Any) -> list[str]:
    column = columns if isinstance(columns, np.ndarray) else columns["said/0"]
    assert column.dtype == np.uint32
    assert column.shape[1:] == (9,)
    found: list[str] = SPACE.decode(column).tolist()
    return found


def reading(env: rollserve.EnvSpec) -> PythonSpec:
    """Return the agent that answers texts."""
    made = Talking(**env.kwargs)  # type: ignore[arg-type]
    return prepared("reading", observation_space=made.observation_space, action_space=made.action_space)


@pytest.mark.parametrize("env", [TALKING, ALONE], ids=["within", "alone"])
async def test_texts_equal_those_of_a_plain_loop(env: rollserve.EnvSpec, sandboxes_find_test_agents: None) -> None:
    alone = bool(env.kwargs)
    async with pool_of(InProcessBackend(), env, workers=2, rows=2, **MODULES) as pool:
        for agent in (RandomSpec(), reading(env)):
            await pool.update_agent([agent])
            batch = await sample(pool, AtLeast(150), seed=4)
            for episode in batch.split():
                expected = plain_texts(episode, alone)
                assert texts(episode.observations) == expected[:-1]
                assert texts(episode.last_observations) == expected[-1:]
                if isinstance(agent, PythonSpec):
                    assert episode.agent_infos["length"].tolist() == list(map(len, expected[:-1]))
            assert {"", "😀"} <= {*texts(batch.observations), *"".join(texts(batch.observations))}


async def test_texts_are_the_same_with_any_workers_messages_and_deaths() -> None:
    whole, parts = [], []
    for seed, (num_workers, num_rows) in enumerate(((1, 6), (2, 3), (3, 2), (5, 1))):
        # One of the pools holds few steps in memory, and spills the others.
        backend, bytes_ = MortalBackend(seed, num_workers // 3), 1 << (14 if num_workers == 2 else 26)
        options: dict[str, Any] = {"workers": num_workers, "rows": num_rows, "unit_retries": 1000, **MODULES}
        async with pool_of(backend, TALKING, worker_buffer_bytes=bytes_, **options) as pool:
            await pool.update_agent([RandomSpec()])
            columns = ColumnFormat(COMPRESSION_LZ4 if num_workers > 1 else None)
            limits: dict[str, Any] = {"columns": columns, "max_message_bytes": 4096 if num_workers > 2 else 1 << 22}
            whole.append(await sample(pool, AtLeast(300), seed=5, **limits))
            if num_workers * num_rows == 6:
                batches = await in_calls(pool, [13, 70], seed=6, **limits)
                found = rollserve.EpisodeBatch.concatenate(*batches).split()
                key = {(int(part.episode_indices[0]), int(part.first_steps[0])): part for part in found}
                parts.append(
                    [texts(key[place].observations) + texts(key[place].last_observations) for place in sorted(key)]
                )
    assert all(equal(batch, whole[0]) for batch in whole)
    assert parts[1:] == parts[:-1]


async def test_texts_that_do_not_fit_fail_their_episodes() -> None:
    env = rollserve.EnvSpec("sample_envs:Talking", {"longest": 10})
    async with pool_of(InProcessBackend(), env, env_retries=0, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        for call in (sample(pool, AtLeast(300), seed=4), fragments(pool, 400, seed=4)):
            with pytest.raises(EnvFailedError, match=r"'said/0'.*expected at most 9 characters, got 10"):
                await call


async def test_other_characters_than_announced_pass_unless_observations_are_checked() -> None:
    odd = rollserve.EnvSpec("sample_envs:Talking", {"characters": "abc"})
    for checked in (False, True):
        async with pool_of(InProcessBackend(), odd, env_retries=0, check_observations=checked, **MODULES) as pool:
            await pool.update_agent([RandomSpec()])
            if checked:
                with pytest.raises(EnvFailedError, match=r"observation 'said/0': expected a text of Text"):
                    await sample(pool, AtLeast(100), seed=4)
            else:
                assert "€" in "".join(texts((await sample(pool, AtLeast(100), seed=4)).observations))


def test_mlps_are_refused_for_texts() -> None:
    agent = rollserve.MlpAgent.initial(SPACE, rollserve.spaces.Discrete(3), seed=0)

    with raises(InvalidValueError, quotes=("numbers", "texts")):
        build_agent(spec_of(agent), gymnasium.spaces.Text(9), gymnasium.spaces.Discrete(3), 2)


@pytest.fixture(scope="module")
def text_server() -> Iterator[LocalServer]:
    options = ("--env", "CartPole-v1", "--workers", "1", "--vectorization", "rows", "--rows", "2")
    with local_server(
        *options, "--backend", "in-process", "--allow-module", "sample_envs", environment=server_environment()
    ) as running:
        yield running


def test_client_decodes_texts_by_their_space(text_server: LocalServer) -> None:
    with rollserve.connect(text_server.address) as sampler:
        updated = sampler.update_env(TALKING)
        assert str(updated.observation_space) == "Dict(said: Tuple(Text(0, 9)), step: Box((1,), float32))"
        with raises(rollserve.InvalidArgumentError, field="all_workers.agent.mlp", quotes=("'said/0'",)):
            sampler.update_agent(rollserve.MlpAgent.initial(updated.observation_space, updated.action_space, seed=0))
        sampler.update_agent(rollserve.RandomAgent())
        batch = sampler.obtain_fragments(100, return_spaces=True)
        space = batch.observation_space
        assert isinstance(space, rollserve.spaces.Dict)
        said = space.spaces["said"].spaces[0]  # type: ignore[union-attr]
        assert said == SPACE
        assert said.decode(batch.observations["said/0"]).tolist() == texts(batch.observations)
        with raises(ValueError, field="values", quotes=("uint32", "(100, 1)")):
            said.decode(batch.observations["step"])
        sampler.update_env(ALONE)
        alone = sampler.obtain_samples(100)
        assert texts(alone.observations)[: alone.lengths[0]] == plain_texts(alone.split()[0], alone=True)[:-1]
