"""Callbacks that see the steps of all rows: the infos that they add, and their errors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pools import CARTPOLE, adds_up, pool_of, sample
from support import equal, raises, server_environment
from unreliable import MortalBackend

import rollserve
from rollserve import EnvSpec, Reason
from rollserve.transforms import CastObservations, ScaleRewards
from rollserve_server.agents import RandomSpec
from rollserve_server.errors import EnvFailedError, InvalidValueError
from rollserve_server.local import local_server
from rollserve_server.pool import AtLeast, Exactly, Fragments, InProcessBackend

pytestmark = pytest.mark.usefixtures("sandboxes_find_test_agents")

ROWS = EnvSpec("CartPole-v1", vectorization="rows", num_rows=3)
NATIVE = EnvSpec("CartPole-v1", vectorization="native", num_rows=3)
COINS = EnvSpec("sample_envs:Coins-v0", {"num_steps": 7}, vectorization="native", num_rows=3)
SAME_STEP_COINS = EnvSpec(
    "sample_envs:Coins-v0", {"num_steps": 7, "mode": "SameStep"}, vectorization="native", num_rows=3
)
TALLY: dict[str, Any] = {"callbacks": ("tally",), "allow_module": ("sample_envs",)}
COUNT, TOTAL = "callbacks/tally/count", "callbacks/tally/total"


def check_tally(batch: rollserve.EpisodeBatch, totals_before: dict[int, float] | None = None) -> dict[int, float]:
    """Check what `Tally` has added to a batch; return the sums of the episodes that go on, by index.

    Args:
        batch: whole episodes, or fragments.
        totals_before: sums of the episodes that began in an earlier call.
    """
    infos = batch.env_infos
    starts = np.cumsum(batch.lengths) - batch.lengths
    steps = np.arange(batch.num_steps) - np.repeat(starts - batch.first_steps, batch.lengths)
    assert np.array_equal(infos[COUNT], steps + 1)
    assert f"_{COUNT}" not in infos
    assert np.array_equal(infos["callbacks/tally/action"], batch.actions)
    following = batch.next_observations
    made = following["made"][:, 0] if isinstance(following, dict) else following[:, 0]
    assert np.array_equal(infos["callbacks/tally/numbers"][:, 0], made)
    going_on = dict(totals_before or {})
    ended = batch.terminated | batch.truncated
    has_total = np.zeros(batch.num_steps, np.bool_)
    for position, index in enumerate(batch.episode_indices.tolist()):
        total = going_on.pop(index, 0.0) + batch.returns[position]
        last = starts[position] + batch.lengths[position] - 1
        if ended[position]:
            has_total[last] = True
            assert infos[TOTAL][last] == pytest.approx(total)
            assert infos["callbacks/tally/is_terminal"][last] == batch.terminated[position]
        else:
            going_on[index] = total
    assert np.array_equal(infos.get(f"_{TOTAL}", np.full(batch.num_steps, TOTAL in infos)), has_total)
    return going_on


@pytest.mark.parametrize("env", [ROWS, NATIVE, COINS, SAME_STEP_COINS], ids=["rows", "native", "coins", "same-step"])
async def test_whole_episodes_have_the_infos_of_callbacks(env: EnvSpec) -> None:
    batches = []
    for num_workers in (1, 3):
        async with pool_of(InProcessBackend(), env, workers=num_workers, **TALLY) as pool:
            await pool.update_agent([RandomSpec()])
            batch = await sample(pool, AtLeast(300), seed=2)
            check_tally(batch)
            assert all(name.startswith("callbacks/tally/") for name in batch.account.dropped_infos or {})
            batches.append(batch)
    assert equal(*batches)
    async with pool_of(InProcessBackend(), env, workers=2, allow_module=("sample_envs",)) as pool:
        await pool.update_agent([RandomSpec()])
        plain = await sample(pool, AtLeast(300), seed=2)
    assert np.array_equal(plain.rewards, batch.rewards)
    assert not any("callbacks" in name for name in plain.env_infos)
    for name, values in plain.env_infos.items():  # the environment's own are there, too
        assert np.array_equal(values, batch.env_infos[name]), name
    assert plain.episode_infos.keys() == batch.episode_infos.keys()


@pytest.mark.parametrize("env", [ROWS, NATIVE, SAME_STEP_COINS], ids=["rows", "native", "same-step"])
async def test_fragments_have_the_infos_of_callbacks(env: EnvSpec) -> None:
    async with pool_of(InProcessBackend(), env, workers=2, **TALLY) as pool:
        await pool.update_agent([RandomSpec()])
        going_on: dict[int, float] = {}
        for _ in range(4):
            going_on = check_tally(await sample(pool, Fragments(6 * 11)), going_on)
        assert going_on


@pytest.mark.parametrize("env", [ROWS, NATIVE], ids=["rows", "native"])
async def test_limit_of_a_call_ends_episodes_of_callbacks(env: EnvSpec) -> None:
    async with pool_of(InProcessBackend(), env, workers=2, **TALLY) as pool:
        await pool.update_agent([RandomSpec()])
        batch = await sample(pool, AtLeast(100), seed=2, max_episode_length=5)
        assert batch.truncated.all()
        check_tally(batch)
        fragments = await sample(pool, Fragments(6 * 13), seed=2, max_episode_length=5)
        assert fragments.truncated.sum() == 12
        check_tally(fragments)


@pytest.mark.parametrize("vectorization", ["rows", "native"])
async def test_callbacks_see_what_agents_get_and_what_the_environment_does(vectorization: Any) -> None:
    transforms = (ScaleRewards(2.0, 1.0), CastObservations("float64"))
    env = EnvSpec("CartPole-v1", vectorization=vectorization, num_rows=3, transforms=transforms)
    async with pool_of(InProcessBackend(), env, workers=1, **TALLY) as pool:
        await pool.update_agent([RandomSpec()])
        batch = await sample(pool, AtLeast(100), seed=2)
    check_tally(batch)
    assert (batch.rewards == 3).all()
    assert (batch.env_infos["callbacks/tally/raw"] == 1).all()


async def test_soft_horizon_is_no_end_for_callbacks() -> None:
    async with pool_of(InProcessBackend(), ROWS, workers=1, **TALLY) as pool:
        await pool.update_agent([RandomSpec()])
        batch = await sample(pool, Fragments(3 * 8, soft_horizon=True), seed=2, max_episode_length=4)
    assert batch.truncated.sum() == 6
    assert not batch.terminated.any()
    starts = np.where(batch.episode_indices < 3, 1, 5)  # each row's second episode begins without a reset
    assert np.array_equal(batch.env_infos[COUNT].reshape(6, 4), starts[:, np.newaxis] + np.arange(4))
    assert TOTAL not in batch.env_infos


@pytest.mark.parametrize("env", [ROWS, NATIVE], ids=["rows", "native"])
async def test_infos_are_the_same_after_lost_workers(env: EnvSpec) -> None:
    batches = []
    for num_deaths in (0, 3):
        async with pool_of(MortalBackend(1, num_deaths), env, workers=2, **TALLY) as pool:
            await pool.update_agent([RandomSpec()])
            parts = [await sample(pool, Fragments(6 * 40, row_step_count=40 * call), seed=2) for call in range(4)]
            going_on: dict[int, float] = {}
            for part in parts:
                going_on = check_tally(part, going_on)
            batches.append(rollserve.EpisodeBatch.concatenate(*parts))
    assert equal(*batches)


@pytest.mark.parametrize("env", [ROWS, NATIVE], ids=["rows", "native"])
async def test_infos_are_the_same_after_an_error_of_a_callback(env: EnvSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = []
    for process in ("", str(os.getpid())):
        monkeypatch.setenv("FLAKY", process)
        async with pool_of(InProcessBackend(), env, workers=2, callbacks=("flaky",)) as pool:
            await pool.update_agent([RandomSpec()])
            monkeypatch.setattr("sample_callbacks.Flaky.num_steps", 0)  # the pool's own checks are over
            batches.append(await sample(pool, Exactly(20), seed=2))
    assert equal(*batches)
    assert [list(batch.account.retry_reasons) for batch in batches] == [[], ["environment_failed"]]
    assert all(adds_up(batch.account) for batch in batches)


@pytest.mark.parametrize("env", [ROWS, NATIVE], ids=["rows", "native"])
async def test_callbacks_see_environments_and_add_beside_each_other(env: EnvSpec) -> None:
    async with pool_of(InProcessBackend(), env, workers=1, callbacks=("tally", "curious")) as pool:
        await pool.update_agent([RandomSpec()])
        batch = await sample(pool, AtLeast(100), seed=2)
        check_tally(batch)
        # Native rows are reset in the step after the last one, so that the state is the row's own in each step.
        assert np.allclose(batch.env_infos["callbacks/curious/x"], batch.next_observations[:, 0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("env", [ROWS, NATIVE], ids=["rows", "native"])
@pytest.mark.parametrize(
    ("callback", "quotes"),
    [
        ("nothing", ("'nothing'", "'tally'", "--callbacks")),
        ("missing-module", ("'missing-module'", "no_such_module")),
        ("broken-making", ("'broken-making'", "ValueError: not today")),
        ("broken-begin", ("'broken-begin'", "on_episode_begin", "ValueError: not today")),
        ("broken-step", ("'broken-step'", "on_step", "ValueError: not today")),
        ("misshapen", ("'misshapen'", "on_step['x']", "of shape (")),
        ("masked", ("'masked'", "'_x'")),
    ],
)
async def test_server_does_not_start_with_a_broken_callback(
    env: EnvSpec, callback: str, quotes: tuple[str, ...]
) -> None:
    with raises(InvalidValueError, reason=Reason.ENV_REFUSED, quotes=quotes):
        async with pool_of(InProcessBackend(), env, workers=1, callbacks=(callback,)):
            pass


@pytest.mark.parametrize(
    ("callback", "quotes"),
    [("broken-end", ("'broken-end'", "on_episode_end", "not today")), ("doubled", ("'doubled'", "'x'"))],
)
async def test_call_fails_with_the_name_of_the_callback(callback: str, quotes: tuple[str, ...]) -> None:
    async with pool_of(InProcessBackend(), ROWS, workers=1, callbacks=(callback,)) as pool:
        await pool.update_agent([RandomSpec()])
        with raises(EnvFailedError, reason=Reason.ENV_FAILED, quotes=quotes):
            await sample(pool, AtLeast(100), seed=2)


def test_server_loads_callbacks_that_its_operator_names(tmp_path: Path) -> None:
    options = ("--env", CARTPOLE.id, "--workers", "1", "--backend", "in-process", "--callbacks", "tally")
    log = tmp_path / "server.log"
    with (
        local_server(*options, log=log, environment=server_environment()) as server,
        rollserve.connect(server.address) as sampler,
    ):
        sampler.update_agent(rollserve.RandomAgent())
        check_tally(sampler.obtain_samples(100))
        evaluation = sampler.evaluate(3, return_episodes=True)
        assert evaluation.episodes is not None
        check_tally(evaluation.episodes)
