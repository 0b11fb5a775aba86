"""Native vector environments: blocks of episodes whose rows are stepped together and share random numbers."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from charges import lay
from native_envs import ALLOWED, CARTPOLE, RIGHT, coins
from pools import adds_up, kill_one, pool_of, sample
from support import equal, raises

import rollserve
from rollserve import EnvSpec, Reason, Reproducibility
from rollserve_server.agents import ConstantSpec, RandomSpec
from rollserve_server.errors import EnvFailedError, InvalidValueError
from rollserve_server.pool import AtLeast, Backend, Exactly, InProcessBackend
from rollserve_server.sampling import EpisodeRange, Order, SequenceSpec, Worker
from rollserve_server.settings import WorkerSettings


def cut(batch: rollserve.EpisodeBatch, start: int, stop: int) -> rollserve.EpisodeBatch:
    return rollserve.EpisodeBatch.concatenate(*batch.split()[start:stop])


def plain_block(num_rows: int, num_episodes_per_row: int, seed: int) -> list[list[np.ndarray]]:
    """Return the observations of each row's episodes, last ones included, of CartPole pushed to the right."""
    env = gymnasium.make_vec("CartPole-v1", num_rows, "vector_entry_point")
    observations, _ = env.reset(seed=seed)
    rows: list[list[np.ndarray]] = [[] for _ in range(num_rows)]
    current = [[observation] for observation in observations]
    ended = np.zeros(num_rows, np.bool_)
    while min(map(len, rows)) < num_episodes_per_row:
        begun = ended
        observations, _, terminated, truncated, _ = env.step(np.ones(num_rows, np.int64))
        ended = terminated | truncated
        for row, observation in enumerate(observations):
            current[row] = [observation] if begun[row] else [*current[row], observation]
            if ended[row]:
                rows[row].append(np.array(current[row]))
    return rows


async def test_episodes_equal_a_plain_loop(backend: Backend) -> None:
    async with pool_of(backend, CARTPOLE) as pool:
        await pool.update_agent([RIGHT])
        batch = await sample(pool, Exactly(30))
    for worker in range(2):
        batch_of_worker = cut(batch, 30 * worker, 30 * (worker + 1))
        assert batch_of_worker.episode_indices.tolist() == list(range(30 * worker, 30 * (worker + 1)))
        (seed,) = set(batch_of_worker.env_seeds.tolist())
        expected = plain_block(8, 4, seed)
        for position, episode in enumerate(batch_of_worker.split()):
            observations = expected[position % 8][position // 8]
            assert np.array_equal(episode.observations, observations[:-1])
            assert np.array_equal(episode.last_observations[0], observations[-1])
            assert episode.terminated.tolist() == [True]
    assert batch.account.num_idle_steps > 0
    assert adds_up(batch.account)


async def test_native_code_is_used_by_default_where_single_rows_have_its_spaces() -> None:
    wrapped = [rollserve.Wrapper("TimeLimit", {"max_episode_steps": 5})]
    classes = (
        (EnvSpec("CartPole-v1"), Reproducibility.BLOCK),
        (EnvSpec("CartPole-v1", vectorization="rows"), Reproducibility.EPISODE),
        (
            EnvSpec("CartPole-v1", {"disable_env_checker": True}),
            Reproducibility.EPISODE,
        ),  # an argument for single environments only
        (EnvSpec("CartPole-v1", wrappers=wrapped), Reproducibility.EPISODE),
        (EnvSpec("Pendulum-v1"), Reproducibility.EPISODE),
        (EnvSpec("sample_envs:Tasks"), Reproducibility.EPISODE),
        (coins(), Reproducibility.BLOCK),
        (coins(remembers=True), Reproducibility.WORKER),
    )
    async with pool_of(InProcessBackend(), **ALLOWED) as pool:
        for spec, expected in classes:
            updated = await pool.update_env([spec])
            assert updated.description.reproducibility is expected, spec
    async with pool_of(InProcessBackend(), rows=3) as pool:
        assert pool.status().env.reproducibility is Reproducibility.EPISODE
        assert pool.status().env.num_rows == 3
        updated = await pool.update_env([CARTPOLE])
        assert (updated.description.num_rows, updated.description.num_episodes_per_row) == (8, 4)


@pytest.mark.parametrize(
    ("spec", "field", "reason", "quote"),
    [
        (EnvSpec("Pendulum-v1", vectorization="native"), "vectorization", Reason.INVALID_VALUE, "Pendulum-v1"),
        (
            EnvSpec("CartPole-v1", wrappers=[rollserve.Wrapper("FlattenObservation")], vectorization="native"),
            "vectorization",
            Reason.INVALID_VALUE,
            "wrappers",
        ),
        (
            EnvSpec("CartPole-v1", task=rollserve.Task("set_task", 1), vectorization="native"),
            "vectorization",
            Reason.INVALID_VALUE,
            "task",
        ),
        (
            EnvSpec("sample_envs:Tasks", vectorization="native"),
            "vectorization",
            Reason.INVALID_VALUE,
            "sample_envs:Tasks",
        ),
        (
            EnvSpec("CartPole-v1", {"gravity": 1}, vectorization="native"),
            "kwargs_json",
            Reason.ENV_REFUSED,
            "'gravity'",
        ),
        (coins(mode="Disabled"), "vectorization", Reason.INVALID_VALUE, "Coins-v0"),
    ],
    ids=["no code", "wrappers", "task", "no code of a class", "argument", "autoreset mode"],
)
async def test_native_vectorization_is_rejected_where_it_does_not_fit(
    spec: EnvSpec, field: str, reason: Reason, quote: str
) -> None:
    async with pool_of(InProcessBackend(), **ALLOWED) as pool:
        await pool.update_agent([RIGHT])
        before = await sample(pool, AtLeast(100), seed=1)
        with raises(InvalidValueError, field=f"all_workers.environment.{field}", reason=reason, quotes=quote):
            await pool.update_env([spec])
        assert equal(await sample(pool, AtLeast(100), seed=1), before)


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
async def test_autoreset_modes_give_complete_episodes(mode: str) -> None:
    async with pool_of(InProcessBackend(), coins(mode=mode), **ALLOWED) as pool:
        await pool.update_agent([RandomSpec()])
        batch = await sample(pool, AtLeast(2000), seed=3)
        again = await sample(pool, AtLeast(500), seed=3)
    assert equal(again, cut(batch, 0, len(again)))
    assert set(batch.lengths.tolist()) == {1, 30}
    for episode in batch.split():
        (length,) = episode.lengths
        assert set(episode.observations["length"].tolist()) == {length}
        assert episode.observations["made"][:, 0].tolist() == list(range(length))
        assert episode.last_observations["made"][0].tolist() == [length, length]
        assert np.array_equal(episode.rewards, episode.actions + 0.5)
        assert episode.terminated.tolist() == [True]
        assert episode.truncated.tolist() == [length == 30]
        present = episode.env_infos["_left"] if "_left" in episode.env_infos else np.ones(length, bool)
        made = np.arange(1, length + 1)
        assert np.array_equal(present, made % 2 == 0)
        assert np.array_equal(episode.env_infos["left"], np.where(present, length - made, 0))


async def test_call_may_begin_within_a_block() -> None:
    async with pool_of(InProcessBackend(), CARTPOLE) as pool:
        await pool.update_agent([RandomSpec()])
        whole = await sample(pool, AtLeast(2000), seed=3)
        for first in (0, 1, 7, 31, 32, 45):
            part = await sample(pool, AtLeast(200), seed=3, first_index=first)
            assert equal(part, cut(whole, first, first + len(part)))
            assert adds_up(part.account)


async def test_calls_continue_the_sequence_across_blocks(backend: Backend) -> None:
    async with pool_of(backend, CARTPOLE) as pool:
        await pool.update_agent([RandomSpec()])
        parts = [await sample(pool, AtLeast(150)) for _ in range(6)]
        seed = pool.status().seed
        whole = await sample(pool, AtLeast(sum(part.num_steps for part in parts)), seed=seed)
        assert equal(rollserve.EpisodeBatch.concatenate(*parts), whole)
        await pool.update_agent([RandomSpec()])
        fresh = await sample(pool, AtLeast(150))
        # The rest of the block belongs to the old policy; the new policy begins with the next block.
        assert fresh.episode_indices[0] % 32 == 0
        assert fresh.episode_indices[0] > whole.episode_indices[-1]


async def test_blocks_go_round_robin_to_workers_that_differ() -> None:
    async with pool_of(InProcessBackend(), CARTPOLE) as pool:
        agents = [ConstantSpec({"": np.array(action)}) for action in (0, 1)]
        await pool.update_agent(agents, per_worker=True)
        batch = await sample(pool, AtLeast(1000))
        assert batch.worker_indices is not None
        for episode in batch.split():
            worker = int(episode.episode_indices[0]) // 8 % 2
            assert set(episode.actions.tolist()) == {worker}
            assert episode.worker_indices.tolist() == [worker]
        exact = await sample(pool, Exactly(9))
        assert [set(part.actions.tolist()) for part in (cut(exact, 0, 9), cut(exact, 9, 18))] == [{0}, {1}]


async def test_failed_environment_is_replaced_for_the_next_call(tmp_path: Path) -> None:
    lay(tmp_path, "purse")
    env = coins(fails_after=300, charges=str(tmp_path))
    async with pool_of(InProcessBackend(), env, workers=1, env_retries=0, **ALLOWED) as pool:
        await pool.update_agent([RandomSpec()])
        await sample(pool, AtLeast(50))
        with pytest.raises(EnvFailedError, match=r"block.* episode \d+.*RuntimeError: the purse is empty"):
            await sample(pool, AtLeast(5000))
        # Where the own sequence goes on depends on how far the worker has run ahead, so a seed names the episodes.
        assert (await sample(pool, AtLeast(50), seed=1)).num_steps >= 50


@pytest.mark.slow
async def test_short_episodes_are_as_frequent_as_long_ones() -> None:
    async with pool_of(InProcessBackend(), coins(num_steps=300), **ALLOWED) as pool:
        await pool.update_agent([RandomSpec()])
        lengths: list[int] = []
        for call in range(100):
            lengths += (await sample(pool, AtLeast(2000))).lengths.tolist()
            if call % 3 == 0:
                await pool.update_agent([RandomSpec()])
    share = np.mean(np.array(lengths) == 1)
    assert abs(share - 0.5) < 3 * 0.5 / np.sqrt(len(lengths)) + 100 / len(lengths)


async def test_full_buffer_pauses_a_block() -> None:
    async with pool_of(InProcessBackend(), CARTPOLE, worker_buffer_bytes=3000, call_window_bytes=3000) as pool:
        await pool.update_agent([RandomSpec()])
        narrow = await sample(pool, AtLeast(3000), seed=2)
    async with pool_of(InProcessBackend(), CARTPOLE) as pool:
        await pool.update_agent([RandomSpec()])
        assert equal(await sample(pool, AtLeast(3000), seed=2), narrow)


async def test_own_sequence_is_not_changed_by_other_calls(backend: Backend) -> None:
    """Other calls may displace the episodes kept for the own sequence."""
    calm: list[rollserve.EpisodeBatch] = []
    for disturbed in (False, True):
        async with pool_of(backend, CARTPOLE) as pool:
            await pool.update_agent([RandomSpec()])
            parts = []
            for _ in range(3):
                next_index = pool.status().next_index
                parts.append(await sample(pool, AtLeast(200)))
                assert parts[-1].episode_indices[0] == next_index
                if disturbed:
                    with raises(InvalidValueError, reason=Reason.ENV_REFUSED):
                        await pool.update_env([rollserve.EnvChange({"nonsense": 1})])
                    for seed in range(6):
                        await sample(pool, AtLeast(20), seed=seed)
            exact = await sample(pool, Exactly(3))
            await pool.update_agent([RandomSpec()])
            next_index = pool.status().next_index
            fresh = await sample(pool, AtLeast(50))
            assert fresh.episode_indices[0] == next_index
            assert next_index % 32 == 0
            batches = [*parts, exact, fresh]
            calm = calm or batches
            assert all(equal(batch, other) for batch, other in zip(batches, calm, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("window_bytes", [1 << 12, 1 << 26])
async def test_batch_is_the_same_when_workers_are_killed(ray_backend: Backend, window_bytes: int) -> None:
    source = random.Random(window_bytes)
    async with pool_of(ray_backend, CARTPOLE, workers=3, call_window_bytes=window_bytes) as pool:
        await pool.update_agent([RandomSpec()])
        whole = await sample(pool, AtLeast(80_000), seed=5)
        num_delivered, num_lost = 0, 0
        for call in range(8):
            target = AtLeast(int(source.choice([300, 3000, 9000])))
            running = asyncio.create_task(sample(pool, target, seed=5, first_index=num_delivered))
            await asyncio.sleep(source.uniform(0.0, 0.15))
            if call % 2:
                kill_one(pool, source)
            batch = await running
            assert equal(batch, cut(whole, num_delivered, num_delivered + len(batch)))
            assert adds_up(batch.account)
            num_delivered += len(batch)
            num_lost += batch.account.num_lost_steps
        assert num_lost > 0


def test_awaited_block_runs_before_a_prefetched_one() -> None:
    worker = Worker(0, WorkerSettings(worker_buffer_bytes=1 << 26))
    worker.add_env(1, CARTPOLE)
    worker.add_agent(1, RandomSpec())
    sequence = SequenceSpec(1, 0, 1, 1)
    finished: list[int] = []
    num_idle_steps = 0

    def work(begin: tuple[EpisodeRange, ...], before: int | None) -> set[int]:
        nonlocal num_idle_steps
        before_now = set(finished)
        while True:
            order = Order(sequence, begin, (), before, (), 1 << 22, seconds=5.0)
            report, _ = worker.work(order)
            finished.extend(index for index, *_ in report.finished)
            num_idle_steps += report.num_idle_steps
            begin = ()
            if not report.num_simulated_steps:
                return set(finished) - before_now

    prefetch = work((EpisodeRange(range(32, 64), 32),), 40)
    assert set(range(32, 40)) <= prefetch
    assert prefetch != set(range(32, 64))
    idle_before = num_idle_steps
    assert work((EpisodeRange(range(5, 32), 0),), 40) == set(range(5, 32))
    assert num_idle_steps > idle_before
    assert work((), None) == set(range(32, 64)) - prefetch
    assert sorted(finished) == list(range(5, 64))  # each one once
    worker.close()


async def test_call_uses_all_workers_when_no_length_is_known() -> None:
    async with pool_of(InProcessBackend(), coins(num_steps=1000), **ALLOWED) as pool:
        await pool.update_agent([RandomSpec()])
        account = (await sample(pool, AtLeast(33_000))).account
        assert all(worker.num_simulated_steps > 6_000 for worker in account.workers)


async def test_block_of_too_many_episodes_is_rejected() -> None:
    async with pool_of(InProcessBackend(), CARTPOLE) as pool:
        await pool.update_agent([RIGHT])
        spec = EnvSpec("CartPole-v1", vectorization="native", num_rows=4096, num_episodes_per_row=17)
        field = "all_workers.environment.episodes_per_row"
        with raises(InvalidValueError, field=field, quotes=("17", "16", "4096")):
            await pool.update_env([spec])
        await sample(pool, AtLeast(100))


def test_client_samples_native_environments(sampler: rollserve.Sampler) -> None:
    updated = sampler.update_env(CARTPOLE)
    assert updated.reproducibility is Reproducibility.BLOCK
    assert (updated.num_rows, updated.num_episodes_per_row) == (8, 4)
    status = sampler.status()
    assert status.envs == (CARTPOLE,)
    assert status.num_episodes_per_row == 4
    assert [worker.num_rows for worker in status.workers] == [8, 8]
    batch = sampler.obtain_samples(500, seed=4)
    assert batch.account.num_idle_steps > 0
    assert equal(sampler.obtain_samples(500, seed=4), batch)
    with raises(rollserve.InvalidArgumentError, field="all_workers.environment.vectorization"):
        sampler.update_env(EnvSpec("Pendulum-v1", vectorization="native"))
    with raises(rollserve.InvalidArgumentError, field="all_workers.environment.row_count", quotes=("5000", "4096")):
        sampler.update_env(EnvSpec("CartPole-v1", num_rows=5000))
    with raises(rollserve.InvalidArgumentError, field="vectorization", quotes=("'fast'", "'native'")):
        EnvSpec("CartPole-v1", vectorization="fast")  # type: ignore[arg-type]


def test_number_of_threads_within_the_cores_is_accepted(sampler: rollserve.Sampler) -> None:
    spec = EnvSpec("ALE/Pong-v5", {"num_threads": 1}, vectorization="native", num_rows=4)
    assert sampler.update_env(spec).num_rows == 4
