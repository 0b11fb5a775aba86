"""An episode is blamed for lost workers if it takes each of its workers down, not because it was there."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from faults.killable import NOTICE_SECONDS, KillableBackend
from pools import CARTPOLE, adds_up, cartpole_agent, evaluate_population, pool_of, sample, until
from support import equal, raises

import rollserve
from rollserve import Reason
from rollserve_server.agents import RandomSpec
from rollserve_server.errors import WorkerLostError
from rollserve_server.pool import AtLeast, Exactly, Fragments, InProcessBackend, Pool, Progress, WorkerHandle
from rollserve_server.pool.plan.units import Suspects
from rollserve_server.pool.workers.restarts import Restarts
from rollserve_server.settings import WorkerSettings

SLOW = rollserve.EnvSpec("sample_envs:Slow", {"step_seconds": 0.005})
BLOCKS = rollserve.EnvSpec("CartPole-v1", vectorization="native", num_rows=4, num_episodes_per_row=2)
OPTIONS: dict[str, Any] = {"allow_module": ("sample_envs",), "progress_seconds": 0.01, **NOTICE_SECONDS}


class Watched:
    """A call that runs on a pool, which reports its progress each 10 ms."""

    def __init__(self, pool: Pool, target: Any) -> None:
        self._progress: list[Progress] = []
        self.running = asyncio.create_task(sample(pool, target, seed=1, progress=self._progress))

    @property
    def num_steps(self) -> int:
        """Number of steps that the call has simulated."""
        return self._progress[-1].num_simulated_steps if self._progress else 0

    async def simulates(self, num_more: int) -> None:
        """Wait until the call has simulated so many more steps."""
        stop = self.num_steps + num_more
        await until(lambda: self.num_steps >= stop)


@pytest.fixture(autouse=True)
def restarts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Restarts, "pause_seconds", lambda *_: 0.0)


class PoisonBackend(KillableBackend):
    """Workers that die when they get an order to begin one episode, or one unit of a population."""

    def __init__(self, poison: int) -> None:
        super().__init__()
        self.poison = poison
        self.num_losses = 0

    def create_worker(self, worker_index: int, settings: WorkerSettings) -> WorkerHandle:
        handle: Any = super().create_worker(worker_index, settings)
        work = handle.work

        def poisonous_work(order: Any) -> Any:
            begun = (getattr(each, "indices", each) for each in (*order.begin, *getattr(order, "begin_again", ())))
            if any(self.poison in each for each in begun):
                self.num_losses += 1
                handle.kill()
            return work(order)

        handle.work = poisonous_work
        return handle  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("env", "target", "named"),
    [(CARTPOLE, AtLeast(2000), 6), (CARTPOLE, Exactly(9), 6), (BLOCKS, AtLeast(2000), 0)],
    ids=["at least", "exactly", "blocks"],
)
@pytest.mark.parametrize("num_workers", [1, 3])
async def test_episode_that_takes_each_worker_down_is_named(
    env: rollserve.EnvSpec, target: Any, named: int, num_workers: int
) -> None:
    backend = PoisonBackend(6)
    async with pool_of(backend, env, workers=num_workers, unit_retries=1, **OPTIONS) as pool:
        await pool.update_agent([RandomSpec()])
        match = rf"ran episode {named}, which 3 workers were lost with before"
        with raises(WorkerLostError, reason=Reason.WORKER_LOST_AGAIN, match=match):
            await sample(pool, target, seed=1)
    assert backend.num_losses == 4  # two beside others, and two alone


async def test_member_whose_episode_takes_each_worker_down_is_named() -> None:
    backend = PoisonBackend(7)  # of two episodes for each member
    async with pool_of(backend, unit_retries=1, **OPTIONS) as pool:
        agent = cartpole_agent()
        await pool.update_agent([agent])
        members = {name: np.stack([value] * 6) for name, value in agent.parameters.items()}
        with raises(WorkerLostError, reason=Reason.WORKER_LOST_AGAIN, match=r"member 3, which 3 "):
            await evaluate_population(pool, members, 2)
    assert backend.num_losses == 4


@pytest.mark.parametrize("target", [AtLeast(150), Exactly(15)], ids=["at least", "exactly"])
async def test_episodes_that_ran_when_their_workers_were_killed_are_not_blamed(target: Any) -> None:
    async with pool_of(InProcessBackend(), SLOW, workers=1, **OPTIONS) as pool:
        await pool.update_agent([RandomSpec()])
        expected = await sample(pool, target, seed=1)
    backend = KillableBackend()
    async with pool_of(backend, SLOW, workers=1, unit_retries=1, **OPTIONS) as pool:
        await pool.update_agent([RandomSpec()])
        call = Watched(pool, target)
        for _ in range(3):  # twice beside others, and once alone
            await call.simulates(1)
            backend.kill(0)
        batch = await call.running
    assert equal(batch, expected)
    assert batch.account.retry_reasons["worker_lost"] > 0
    assert adds_up(batch.account)


async def test_rows_whose_worker_was_killed_at_several_steps_are_not_blamed() -> None:
    env = rollserve.EnvSpec("sample_envs:Slow", {"step_seconds": 0.002, "length": 7})
    target: Any = Fragments(600)
    async with pool_of(InProcessBackend(), env, workers=1, **OPTIONS) as pool:
        await pool.update_agent([RandomSpec()])
        expected = await sample(pool, target, seed=1)
    backend = KillableBackend()
    async with pool_of(backend, env, workers=1, unit_retries=1, **OPTIONS) as pool:
        await pool.update_agent([RandomSpec()])
        call = Watched(pool, target)
        for num_more in (1, 200, 400):
            await call.simulates(num_more)
            backend.kill(0)
        assert equal(await call.running, expected)


def test_units_that_end_are_acquitted() -> None:
    suspects = Suspects(num_retries=1)
    for _ in range(2):
        suspects.lose(0, [3, 4])
    assert suspects.to_isolate() == [3, 4]
    suspects.isolate(0, 3)
    suspects.lose(0, [3])
    suspects.isolate(1, 3)
    assert suspects.is_isolated(1)
    suspects.acquit(3)
    assert not suspects.is_isolated(1)
    assert suspects.to_isolate() == [4]
    assert suspects.culprit is None
    for num_losses in (1, 2):
        suspects.isolate(0, 4)
        suspects.lose(0, [4])
        assert (suspects.culprit is None) == (num_losses == 1)


def test_unit_that_a_worker_hung_in_is_the_only_suspect() -> None:
    suspects = Suspects(num_retries=1)
    suspects.hang(0, 3)
    assert suspects.culprit is None
    assert suspects.to_isolate() == []
    suspects.hang(1, 3)
    assert suspects.culprit is not None
    assert suspects.culprit.unit == 3
