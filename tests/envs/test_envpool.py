"""Environments of EnvPool, which run in blocks as native vector environments do."""

from __future__ import annotations

import asyncio
import os
import platform
import signal
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from fragment_calls import in_calls, of_episodes
from pools import adds_up, calls_of, pool_of, sample, until
from support import equal, raises

import rollserve
from rollserve import EnvSpec, Reason, Reproducibility
from rollserve_server.agents import ConstantSpec, RandomSpec
from rollserve_server.envs import VectorEnvs
from rollserve_server.errors import DomainError, EnvFailedError, InvalidValueError, NotFoundError, OverLimitError
from rollserve_server.pool import AtLeast, Backend, Exactly, InProcessBackend

HAS_WHEEL = (sys.platform, platform.machine()) in {
    ("linux", "x86_64"),
    ("linux", "aarch64"),
    ("darwin", "arm64"),
    ("win32", "AMD64"),
}
pytestmark = [
    pytest.mark.skipif(not HAS_WHEEL, reason="EnvPool has no wheel for this platform"),
    pytest.mark.filterwarnings("ignore:.*precision lowered by casting"),  # EnvPool makes such spaces
]


def spec_of(env_id: str, num_rows: int = 4, num_episodes_per_row: int = 3, **kwargs: Any) -> EnvSpec:
    options: dict[str, Any] = {"num_rows": num_rows, "num_episodes_per_row": num_episodes_per_row}
    return EnvSpec(env_id, kwargs, vectorization="envpool", **options)


CARTPOLE = spec_of("CartPole-v1")
HALF_CHEETAH = spec_of("HalfCheetah-v5", max_episode_steps=30)
LEFT = ConstantSpec({"": np.array(0)})
FULL_SPEED = ConstantSpec({"": np.ones(6)})


def plain_episodes(
    env_id: str, num_rows: int, seed: int, action: np.ndarray, num_steps: int, **kwargs: Any
) -> list[list[dict[str, Any]]]:
    """Return each row's episodes from a plain loop over EnvPool, which resets a row in the step after its last one."""
    import envpool

    seeds = np.random.SeedSequence(seed).generate_state(num_rows) >> 1
    pool = envpool.make_gymnasium(env_id, num_envs=num_rows, num_threads=1, seed=seeds.tolist(), **kwargs)
    observations, _ = pool.reset()
    rows: list[list[dict[str, Any]]] = [[{"observations": [observations[row]]}] for row in range(num_rows)]
    ended = np.zeros(num_rows, np.bool_)
    for _ in range(num_steps):
        begun = ended
        observations, rewards, terminated, truncated, infos = pool.step(np.stack([action] * num_rows))
        ended = terminated | truncated
        for row, episodes in enumerate(rows):
            if begun[row]:
                episodes.append({"observations": [observations[row]]})
                continue
            episodes[-1]["observations"].append(observations[row])
            episodes[-1].setdefault("rewards", []).append(rewards[row])
            episodes[-1].setdefault("infos", []).append({name: infos[name][row] for name in infos if name != "players"})
            episodes[-1]["flags"] = (bool(terminated[row]), bool(truncated[row]))
    return rows


@pytest.mark.parametrize(
    ("spec", "agent", "infos"),
    [
        (CARTPOLE, LEFT, set()),
        (HALF_CHEETAH, FULL_SPEED, {"reward_run", "reward_ctrl", "x_position", "x_velocity"}),
    ],
    ids=["CartPole", "HalfCheetah"],
)
async def test_episodes_equal_a_plain_loop_over_envpool(
    backend: Backend, spec: EnvSpec, agent: ConstantSpec, infos: set[str]
) -> None:
    async with pool_of(backend, spec) as pool:
        assert pool.status().env.reproducibility is Reproducibility.BLOCK
        await pool.update_agent([agent])
        batch = await sample(pool, AtLeast(400), seed=5)
    assert set(batch.env_infos) == infos
    assert set(batch.episode_infos) == infos
    assert batch.account.dropped_infos == {}
    assert adds_up(batch.account)
    blocks: dict[int, list[list[dict[str, Any]]]] = {}
    (action,) = agent.action.values()
    for index, episode in enumerate(batch.split()):
        assert episode.episode_indices.tolist() == [index]
        (seed,) = episode.env_seeds.tolist()
        if seed not in blocks:
            blocks[seed] = plain_episodes(spec.id, 4, seed, action, 120, **spec.kwargs)
        expected = blocks[seed][index % 4][index % 12 // 4]
        observations = np.array(expected["observations"])
        assert np.array_equal(episode.observations, observations[:-1])
        assert np.array_equal(episode.last_observations[0], observations[-1])
        assert np.array_equal(episode.rewards, expected["rewards"])
        assert (episode.terminated.tolist()[0], episode.truncated.tolist()[0]) == expected["flags"]
        for name in infos:
            assert np.array_equal(episode.env_infos[name], [info[name] for info in expected["infos"]])
    assert len(blocks) > 1


@pytest.mark.parametrize(
    "spec", [CARTPOLE, pytest.param(HALF_CHEETAH, marks=pytest.mark.slow)], ids=lambda spec: spec.id
)
@pytest.mark.slow
async def test_batch_does_not_depend_on_workers_or_kills(ray_backend: Backend, spec: EnvSpec) -> None:
    async with pool_of(InProcessBackend(), spec, workers=1) as pool:
        await pool.update_agent([RandomSpec()])
        expected = await sample(pool, AtLeast(10_000), seed=9)
        # A call may begin within a block, as when a client resumes a stream.
        for first in (1, 7, 12, 17):
            part = await sample(pool, AtLeast(60), seed=9, first_index=first)
            whole = expected.split()[first : first + len(part)]
            assert equal(part, rollserve.EpisodeBatch.concatenate(*whole))
    async with pool_of(InProcessBackend(), spec, workers=3) as pool:
        await pool.update_agent([RandomSpec()])
        assert equal(await sample(pool, AtLeast(10_000), seed=9), expected)
    async with pool_of(ray_backend, spec, workers=2) as pool:
        await pool.update_agent([RandomSpec()])
        calls = calls_of(pool)
        running = asyncio.create_task(sample(pool, AtLeast(10_000), seed=9))
        await until(lambda: bool(calls))
        os.kill(pool.status().workers[1].identity.process_id, signal.SIGKILL)
        batch = await running
    assert equal(batch, expected)
    assert batch.account.num_retried_episodes > 0
    assert adds_up(batch.account)


async def test_exact_episodes_are_reproducible() -> None:
    async with pool_of(InProcessBackend(), CARTPOLE) as pool:
        await pool.update_agent([RandomSpec()])
        batch = await sample(pool, Exactly(7), seed=3)
        assert batch.episode_indices.tolist() == list(range(14))
        assert batch.terminated.all()
        assert equal(await sample(pool, Exactly(7), seed=3), batch)


async def test_fragments_join_to_the_same_episodes() -> None:
    async with pool_of(InProcessBackend(), CARTPOLE) as pool:
        await pool.update_agent([RandomSpec()])
        whole = await of_episodes(await in_calls(pool, [60], seed=3))
        parts = await of_episodes(await in_calls(pool, [1, 29, 30], seed=3))
    assert parts.keys() == whole.keys()
    assert all(equal(parts[index], episode) for index, episode in whole.items())


def test_both_flags_are_set_when_an_episode_ends_at_its_limit() -> None:
    (episodes,) = plain_episodes("CartPole-v1", 1, 5, np.array(0, np.int32), 20)
    length = len(episodes[0]["rewards"])
    for limit, flags in ((length - 1, (False, True)), (length, (True, True)), (length + 1, (True, False))):
        for kwargs, max_length in (
            ({"max_episode_steps": limit}, None),
            ({}, limit),
            ({"max_episode_steps": 400}, limit),
        ):
            envs = VectorEnvs(spec_of("CartPole-v1", **kwargs), 1, max_length)
            envs.begin(5)
            for _ in range(min(limit, length)):
                envs.step([np.zeros(1, np.int64)])
            assert (envs.terminated[0], envs.truncated[0]) == flags
            (last,) = envs.last_observations(np.arange(1))
            assert np.array_equal(last[0], episodes[0]["observations"][min(limit, length)])
            assert envs.max_episode_steps == limit
            envs.close()


async def test_length_is_limited_by_server_call_and_environment() -> None:
    async with pool_of(InProcessBackend(), CARTPOLE, max_episode_length=4) as pool:
        assert pool.status().env.max_episode_steps == 500
        await pool.update_agent([LEFT])
        batch = await sample(pool, AtLeast(41))
        assert batch.lengths.tolist() == [4] * 11
        assert batch.truncated.all()
        assert not batch.terminated.any()
        assert set((await sample(pool, AtLeast(41), max_episode_length=3)).lengths.tolist()) == {3}
        updated = await pool.update_env([HALF_CHEETAH])
        assert updated.description.max_episode_steps == 30


async def test_frames_and_nested_spaces_are_sampled() -> None:
    async with pool_of(InProcessBackend(), workers=1) as pool:
        pong = spec_of("Pong-v5", 2, 1, max_episode_steps=9, img_height=42, stack_num=2, reward_clip=True)
        updated = await pool.update_env([pong])
        assert updated.description.observation_space.shape == (2, 42, 84)
        await pool.update_agent([RandomSpec()])
        batch = await sample(pool, AtLeast(18))
        assert batch.observations.dtype == np.uint8
        # The info `reward` is the reward before clipping; the info that the game has ended is EnvPool's own.
        assert set(batch.env_infos) == {"lives", "ram", "reward"}
        await pool.update_env([spec_of("Parking-v0", max_episode_steps=20)])
        await pool.update_agent([RandomSpec()])
        batch = await sample(pool, AtLeast(240))
        assert isinstance(batch.observations, Mapping)
        assert set(batch.observations) == {"observation", "achieved_goal", "desired_goal"}
        assert set(batch.lengths.tolist()) == {20}
        first, second = batch.split()[0], batch.split()[4]
        last, begun = first.last_observations["observation"][0], second.observations["observation"][0]
        assert not np.array_equal(last, begun)


@pytest.mark.parametrize(
    ("spec", "quotes"),
    [
        (spec_of("CartPole-v1", gravity=3), ("'gravity'", "max_episode_steps, reward_threshold")),
        (spec_of("CartPole-v1", num_threads=-1), "'num_threads'"),
        (spec_of("CartPole-v1", seed=3), "'seed'"),
        (spec_of("HalfCheetah-v5", from_pixels=True), "'from_pixels'"),
        (spec_of("HalfCheetah-v5", render_mode="rgb_array"), "'render_mode'"),
        (spec_of("HalfCheetah-v5", xml_file="ant.xml"), "'xml_file'"),
        (spec_of("Pong-v5", task="nothing"), "'task'"),
        (spec_of("Pong-v5", mode=2**31), ("mode", str(2**31), str(-(2**31)), str(2**31 - 1))),
        (spec_of("Pong-v5", stack_num=True), ("stack_num", "True")),
        (spec_of("Pong-v5", reward_clip=1), ("reward_clip", "1")),
        (spec_of("HalfCheetah-v5", reset_noise_scale="a"), ("reset_noise_scale", "'a'")),
        (spec_of("CartPole-v1", max_episode_steps=0), ("max_episode_steps", "0", "1")),
        (spec_of("MiniGrid-Empty-5x5-v0", agent_start_pos=[1, 2, 3]), ("agent_start_pos", "[1, 2, 3]", "[1, 1]")),
    ],
    ids=lambda value: value.id if isinstance(value, EnvSpec) else "",
)
def test_invalid_argument_is_rejected(spec: EnvSpec, quotes: str | tuple[str, ...]) -> None:
    with raises(InvalidValueError, field="kwargs_json", reason=Reason.INVALID_VALUE, quotes=quotes):
        VectorEnvs(spec, 2)


def test_argument_refused_by_the_environment_is_rejected() -> None:
    quotes = ("Pong-v5", "RuntimeError: Invalid game mode")
    with raises(InvalidValueError, field="kwargs_json", reason=Reason.ENV_REFUSED, quotes=quotes):
        VectorEnvs(spec_of("Pong-v5", mode=99), 2)


@pytest.mark.parametrize(
    ("kwargs", "error", "quote"),
    [
        ({"noop_max": 0}, InvalidValueError, "Pong-v5"),
        ({"stack_num": 8}, OverLimitError, "--worker-observation-bytes"),
        ({"img_width": 100_000, "img_height": 100_000}, OverLimitError, "--probe-memory-bytes"),
    ],
    ids=["crashes", "many frames", "large frames"],
)
async def test_argument_that_native_code_cannot_bear_costs_no_worker(
    backend: Backend, kwargs: dict[str, int], error: type[DomainError], quote: str
) -> None:
    async with pool_of(backend, workers=1, reset_seconds=10, worker_observation_bytes=1 << 20) as pool:
        worker = pool.status().workers[0].identity
        reason = Reason.ENV_REFUSED if error is InvalidValueError else Reason.ENVIRONMENTS_TOO_LARGE
        with raises(error, field="all_workers.environment", reason=reason, quotes=quote):
            await pool.update_env([spec_of("Pong-v5", **kwargs)])
        assert pool.status().env_version == 1
        assert (await pool.update_env([CARTPOLE])).version == 2
        assert pool.status().workers[0].identity == worker


def test_environment_of_several_players_is_rejected() -> None:
    with raises(InvalidValueError, field="id", reason=Reason.INVALID_VALUE, quotes="'IntersectionMultiAgent-v0'"):
        VectorEnvs(spec_of("IntersectionMultiAgent-v0"), 2)


@pytest.mark.parametrize(
    ("changes", "quote"),
    [
        ({"wrappers": [rollserve.Wrapper("FlattenObservation")]}, "wrappers"),
        ({"task": rollserve.Task("set_task", 1)}, "task"),
        ({"reset_options": {"low": 0}}, "reset_options_json"),
    ],
)
def test_wrappers_tasks_and_reset_options_are_rejected(changes: dict[str, Any], quote: str) -> None:
    with raises(InvalidValueError, field="vectorization", reason=Reason.INVALID_VALUE, quotes=("'envpool'", quote)):
        VectorEnvs(EnvSpec("CartPole-v1", vectorization="envpool", **changes), 2)


async def test_rejected_update_changes_nothing() -> None:
    async with pool_of(InProcessBackend(), CARTPOLE) as pool:
        await pool.update_agent([RandomSpec()])
        before = await sample(pool, AtLeast(100), seed=1)
        refused: list[EnvSpec | rollserve.EnvChange] = [
            spec_of("Pong-v5", noop_max=0),
            spec_of("Nothing-v0"),
            rollserve.EnvChange(kwargs={"num_envs": 3}),
            rollserve.EnvChange(reset_options={"low": 0}),
        ]
        for update in refused:
            with pytest.raises(DomainError):
                await pool.update_env([update])
        assert equal(await sample(pool, AtLeast(100), seed=1), before)
        await pool.update_env([rollserve.EnvChange(kwargs={"max_episode_steps": 3})])
        assert set((await sample(pool, AtLeast(30))).lengths.tolist()) == {3}


def test_unknown_id_and_missing_package_are_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with raises(NotFoundError, field="id", reason=Reason.ENV_NOT_FOUND, quotes=("'ALE/Pong-v5'", "'Pong-v5'")):
        VectorEnvs(spec_of("ALE/Pong-v5"), 2)
    monkeypatch.setitem(sys.modules, "envpool.registration", None)
    package = "rollserve-server[envpool]"
    with raises(NotFoundError, field="vectorization", reason=Reason.PACKAGE_NOT_FOUND, quotes=package):
        VectorEnvs(CARTPOLE, 2)


def test_invalid_actions_raise() -> None:
    envs = VectorEnvs(CARTPOLE, 2)
    envs.begin(1)
    with raises(EnvFailedError, quotes=("actions", "[0 7]", "MultiDiscrete([2 2])")):
        envs.step([np.array([0, 7])])


async def test_server_setting_selects_envpool() -> None:
    settings = {"vectorization": "envpool", "native_rows": 3, "episodes_per_row": 2}
    async with pool_of(InProcessBackend(), EnvSpec("HalfCheetah-v5", {"max_episode_steps": 9}), **settings) as pool:
        assert pool.status().env.reproducibility is Reproducibility.BLOCK
        assert (pool.status().env.num_rows, pool.status().env.num_episodes_per_row) == (3, 2)
        await pool.update_agent([RandomSpec()])
        batch = await sample(pool, AtLeast(60), max_episode_length=5)
        assert set(batch.lengths.tolist()) == {5}
        await pool.update_env([EnvSpec("CartPole-v1", vectorization="rows")])
        assert pool.status().env.reproducibility is Reproducibility.EPISODE


def test_client_samples_envpool_environments(sampler: rollserve.Sampler) -> None:
    updated = sampler.update_env(HALF_CHEETAH)
    assert updated.reproducibility is Reproducibility.BLOCK
    assert (updated.num_rows, updated.num_episodes_per_row) == (4, 3)
    assert sampler.status().envs == (HALF_CHEETAH,)
    sampler.update_agent(rollserve.MlpAgent.initial(updated.observation_space, updated.action_space, seed=0))
    batch = sampler.obtain_samples(500, seed=4)
    assert set(batch.lengths.tolist()) == {30}
    assert equal(sampler.obtain_samples(500, seed=4), batch)
    field = "all_workers.environment.kwargs_json"
    with raises(rollserve.InvalidArgumentError, field=field, reason=Reason.INVALID_VALUE, quotes="'num_envs'"):
        sampler.update_env(spec_of("CartPole-v1", num_envs=3))
    with raises(rollserve.InvalidArgumentError, field=field, reason=Reason.PATH_NOT_ALLOWED, quotes="'/etc/passwd'"):
        sampler.update_env(spec_of("HalfCheetah-v5", xml_file="/etc/passwd"))
