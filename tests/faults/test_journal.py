"""Takeover from a journal: another pool continues with the workers and the state of a pool that is gone."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import pickle
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from charges import lay
from faults.killable import NOTICE_SECONDS, KillableBackend, kill_worker
from faults.running import begin_to_sample
from faults.test_fraction_of_workers import Calls, truth_of
from onnx_models import categorical
from pools import CARTPOLE, run_of, sample, sample_request, set_start_seconds, settings, until
from sample_agents import Masked
from support import equal, raises
from unreliable import Places

import rollserve
from rollserve import Reason
from rollserve_server import __version__
from rollserve_server.agents import (
    ConstantSpec,
    InstalledFactory,
    OnnxModel,
    PickledFactory,
    PythonSource,
    RandomSpec,
)
from rollserve_server.errors import (
    InvalidValueError,
    NotAllowedError,
    NotReadyError,
    SamplerLostError,
    TooFewWorkersError,
    WorkerLostError,
)
from rollserve_server.pool import AtLeast, Exactly, Fragments, InProcessBackend, Pool, saving
from rollserve_server.pool.journal.kept_records import KeptRecords
from rollserve_server.pool.journal.lease import Lease, Owner
from rollserve_server.pool.state.records import entry_records, read_records, sampler_records
from rollserve_server.pool.state.saved_sampler import SavedHeader, SavedSampler
from rollserve_server.sampling import Worker
from rollserve_wire.v1 import saved_sampler_pb2 as pb

MODULES: dict[str, Any] = {"allow_module": ("sample_envs",)}


class LastingBackend(KillableBackend):
    """Workers that outlive their pool, and a journal that keeps records, like a journal in another process.

    Attributes:
        kept: what the journal keeps, or None before the first pool.
        is_failing: whether writes to the journal fail.
        is_roomy: whether new workers start.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kept: KeptRecords | None = None
        self.is_failing = False
        self.is_roomy = True
        self._epoch = 0
        self._found: dict[int, Any] = {}
        self._has_begun = False

    def left(self) -> SavedSampler | None:
        """Return the state in the journal, as the next pool reads it."""
        if self.kept is None:
            return None
        records = [pb.SavedRecord.FromString(b"".join(record)) for record in self.kept]
        return read_records(records, in_journal=True)

    async def open_journal(self, check: Callable[[SavedSampler], object]) -> Any:
        if (left := self.left()) is not None:
            check(left)
        self._epoch += 1
        self._found, self._has_begun = dict(self.handles), False
        journal: Any = await super().open_journal(check)
        journal.epoch, journal.state = self._epoch, self.left()
        journal.follows_loss = journal.state is None and self._epoch > 1
        journal.begin, journal.write = self._begin, self._write
        return journal

    async def _begin(self, state: Callable[[], SavedSampler], header: Callable[[], SavedHeader]) -> None:
        self._header = header
        if self.kept is None or self._has_begun:  # the sampler was restored
            self.kept = KeptRecords(map(b"".join, sampler_records(state())))

        self._has_begun = True

    async def _write(self, **changes: Any) -> None:
        if self.is_failing:
            raise SamplerLostError("journal broken by design", reason=Reason.JOURNAL_LOST)
        if self.kept is not None:
            self.kept.apply(map(b"".join, entry_records(self._header(), **changes)))

    def create_worker(self, worker_index: int, settings: Any) -> Any:
        if not self.is_roomy:
            return _NeverStarts()
        return super().create_worker(worker_index, settings)

    def find_worker(self, worker_index: int) -> Any:
        return self._found.pop(worker_index, None)


class _NeverStarts:
    is_outdated = False

    async def call(self, *_: Any) -> Any:
        await asyncio.Event().wait()

    def kill(self, error: WorkerLostError | None = None) -> None:
        pass


@contextlib.asynccontextmanager
async def pool_on(
    backend: InProcessBackend, env: rollserve.EnvSpec = CARTPOLE, *, keep: bool = True, **changes: Any
) -> AsyncIterator[Pool]:
    """Run a pool during the block, and leave its workers to the next pool if `keep`."""
    pool = await Pool.start(backend, settings(**changes), env)
    try:
        yield pool
    finally:
        await pool.close(keep=keep)


async def test_restored_sampler_is_the_next_servers() -> None:
    backend = LastingBackend()
    async with pool_on(backend) as pool:
        await pool.update_agent([RandomSpec()])
        await sample(pool, AtLeast(100))
        saved = await pool.save()
        expected = await sample(pool, AtLeast(100))
        await pool.update_agent([ConstantSpec({"": np.array(1)})])
        before = run_of(pool)
        await pool.restore(saved)
        assert run_of(pool) != before
        assert pool.status().policy_version == 1
        assert equal(await sample(pool, AtLeast(100)), expected)
        run, own = run_of(pool), await sample(pool, AtLeast(100), seed=3)
    async with pool_on(backend, keep=False) as pool:
        assert (run_of(pool), pool.status().policy_version) == (run, 1)
        assert equal(await sample(pool, AtLeast(100), seed=3), own)


async def test_restore_that_fails_leaves_the_journal_as_it_was() -> None:
    backend = LastingBackend()
    async with pool_on(backend) as pool:
        await pool.update_agent([RandomSpec()])
        saved = await pool.save()
        await pool.update_agent([ConstantSpec({"": np.array(1)})])
        run = run_of(pool)
        backend.is_roomy = False
        set_start_seconds(pool, 0.5)
        with raises(WorkerLostError):
            await pool.restore(saved)
        backend.is_roomy = True
    async with pool_on(backend, keep=False) as pool:
        assert (run_of(pool), pool.status().policy_version) == (run, 2)


async def test_takeover_keeps_versions_counters_and_results() -> None:
    backend, targets = LastingBackend(), (AtLeast(300), Exactly(10))
    async with pool_on(backend) as pool:
        await pool.update_agent([RandomSpec()])
        await pool.update_agent([ConstantSpec({"": np.array(1)})])
        own = await sample(pool, AtLeast(100))
        expected = [
            await sample(pool, target, seed=3, policy_version=version) for target in targets for version in (1, 2)
        ]
        before, run = pool.status(), run_of(pool)
    del backend.handles[1]  # as if it had died meanwhile
    async with pool_on(backend) as pool:
        after = pool.status()
        for name in ("env_specs", "env_version", "agent_kinds", "policy_version", "counters"):
            assert getattr(after, name) == getattr(before, name), name
        simulated = [[each.num_simulated_steps for each in status.workers] for status in (before, after)]
        assert simulated[0] == simulated[1]
        assert len(after.workers) == len(before.workers)
        assert after.uptime_seconds >= before.uptime_seconds
        repeated = [
            await sample(pool, target, seed=3, policy_version=version, run=run)
            for target in targets
            for version in (1, 2)
        ]
        assert all(map(equal, repeated, expected))
        # A client may still continue the own sequence of the pool before.
        fresh = await sample(pool, AtLeast(100))
        assert fresh.account.seed != own.account.seed
        assert set(fresh.env_seeds).isdisjoint(own.env_seeds)
        assert (await pool.update_agent([RandomSpec()])).version == 3
        seeds = {own.account.seed, fresh.account.seed}
    async with pool_on(backend, keep=False) as pool:
        assert pool.status().seed not in seeds


async def test_pool_after_a_loss_begins_a_run_with_other_own_sequences(caplog: pytest.LogCaptureFixture) -> None:
    backend, runs, seeds = LastingBackend(), set(), []
    for _ in range(3):
        async with pool_on(backend) as pool:
            runs.add(run_of(pool))
            await pool.update_agent([RandomSpec()])
            for target in (AtLeast(50), Fragments(80)):
                account = (await sample(pool, target)).account
                seeds.append(account.seed)
            assert pool.status().policy_version == 1
        backend.kept = None
        backend.handles.clear()
    assert len(runs) == 3
    assert len(set(seeds[::2])) == len(set(seeds[1::2])) == 3
    assert [record.message[:29] for record in caplog.records if "lost" in record.message] == 2 * [
        "sampler lost with its journal"
    ]
    async with pool_on(LastingBackend(), keep=False) as pool:  # a fresh one with the same seed
        assert pool.status().seed == seeds[0]


async def test_takeover_keeps_the_versions_that_the_pool_kept() -> None:
    backend = LastingBackend()
    async with pool_on(backend, keep_versions=2) as pool:
        for _ in range(4):
            await pool.update_agent([RandomSpec()])
            await pool.update_env([CARTPOLE])
        await sample(pool, AtLeast(1))
        left = backend.left()
        assert left is not None
        assert (set(left.agents), set(left.envs)) == ({3, 4}, {4, 5})
    async with pool_on(backend, keep=False) as pool:
        for policy_version, env_version in ((3, 4), (4, 5)):
            await sample(pool, AtLeast(1), policy_version=policy_version, env_version=env_version)
        with raises(NotReadyError, field="options.policy_version", reason=Reason.POLICY_VERSION, match="3, 4"):
            await sample(pool, AtLeast(1), policy_version=2)
        with raises(NotReadyError, field="options.environment_version", reason=Reason.ENVIRONMENT_VERSION):
            await sample(pool, AtLeast(1), env_version=3)


@pytest.mark.parametrize("software", [__version__, "0.1.99"])
async def test_takeover_goes_on_with_models_whatever_version_left_them(
    monkeypatch: pytest.MonkeyPatch, software: str
) -> None:
    backend, model = LastingBackend(), OnnxModel(categorical().SerializeToString(), {}, {}, "categorical", ())
    with monkeypatch.context() as patch:
        patch.setattr(saving, "__version__", software)
        async with pool_on(backend) as pool:
            await pool.update_agent([model])
            expected = [await sample(pool, target, seed=3) for target in (AtLeast(100), Fragments(80))]
            hashes = [version.agents[0].content_hash for version in await pool.agents.listed()]
    if software != __version__:
        backend.handles.clear()  # the backend has ended workers of another version
    async with pool_on(backend, keep=False) as pool:
        assert [version.agents[0].content_hash for version in await pool.agents.listed()] == hashes
        assert await pool.current_if_same([model]) is not None
        for target, batch in zip((AtLeast(100), Fragments(80)), expected, strict=True):
            assert equal(await sample(pool, target, seed=3), batch)
        assert (await pool.update_agent([model])).version == 2


@pytest.mark.usefixtures("sandboxes_find_test_agents")
@pytest.mark.parametrize("software", [__version__, "0.1.99"])
@pytest.mark.parametrize("keep_versions", [1, 8])
async def test_takeover_keeps_agents_for_the_spaces_that_they_were_accepted_for(
    monkeypatch: pytest.MonkeyPatch, software: str, keep_versions: int
) -> None:
    backend, agent = LastingBackend(), PythonSource(InstalledFactory("masked", {"asks": False}), {})
    with monkeypatch.context() as patch:
        patch.setattr(saving, "__version__", software)
        async with pool_on(backend, keep_versions=keep_versions) as pool:
            await pool.update_agent([agent])
            expected = await sample(pool, AtLeast(50), seed=3)
            await pool.update_env([rollserve.EnvSpec("Acrobot-v1")])
    if software != __version__:
        backend.handles.clear()  # the backend has ended workers of another version
    async with pool_on(backend, keep=False, keep_versions=keep_versions) as pool:
        with raises(NotReadyError, reason=Reason.AGENT_MISFIT, match="observation space"):
            await sample(pool, AtLeast(50))
        if keep_versions > 1:
            assert equal(await sample(pool, AtLeast(50), seed=3, env_version=1), expected)
        await pool.update_env([CARTPOLE])
        assert (await sample(pool, AtLeast(50))).num_steps >= 50


@pytest.mark.usefixtures("sandboxes_find_test_agents")
async def test_takeover_leaves_out_superseded_agents_that_are_not_accepted(caplog: pytest.LogCaptureFixture) -> None:
    backend = LastingBackend()
    pickled = PythonSource(PickledFactory(pickle.dumps(functools.partial(Masked, asks=False))), {})
    async with pool_on(backend, allow_pickle=True) as pool:
        await pool.update_agent([pickled])
    with raises(NotAllowedError, field="agents[1].data", reason=Reason.PICKLE_NOT_ALLOWED, match="--no-adopt"):
        async with pool_on(backend):
            pass
    async with pool_on(backend, allow_pickle=True) as pool:  # the failed start changed nothing
        assert (await sample(pool, AtLeast(50), policy_version=1)).num_steps >= 50
        assert (await pool.update_agent([RandomSpec()])).version == 2
    async with pool_on(backend, keep=False) as pool:
        assert pool.status().policy_version == 2
        with raises(NotReadyError, field="options.policy_version", reason=Reason.POLICY_VERSION):
            await sample(pool, AtLeast(50), policy_version=1)
    assert [vars(record)["policy_version"] for record in caplog.records if record.message == "agents left out"] == [1]


async def test_takeover_forgets_updates_that_were_not_written() -> None:
    backend = LastingBackend()
    async with pool_on(backend) as pool:
        await pool.update_agent([ConstantSpec({"": np.array(0)})])
        expected = await sample(pool, AtLeast(50), seed=3)
        backend.is_failing = True
        for update in (pool.update_agent([ConstantSpec({"": np.array(1)})]), pool.update_env([CARTPOLE])):
            with raises(SamplerLostError, match="journal broken by design"):
                await update
        backend.is_failing = False
    async with pool_on(backend, keep=False) as pool:
        assert (pool.status().policy_version, pool.status().env_version) == (1, 1)
        assert equal(await sample(pool, AtLeast(50), seed=3), expected)
        assert (await pool.update_agent([ConstantSpec({"": np.array(1)})])).version == 2
        other = await sample(pool, AtLeast(50), seed=3)
        assert (other.actions == 1).all()


async def test_takeover_continues_row_sequences() -> None:
    env = rollserve.EnvSpec("Acrobot-v1")  # its episodes are longer than the calls
    asked: dict[str, Any] = {"seed": 3, "return_discount": 0.9}
    async with pool_on(InProcessBackend(), env, keep=False) as pool:
        await pool.update_agent([RandomSpec()])
        targets = [Fragments(160, row_step_count=count) for count in range(0, 100, 20)]
        expected = [await sample(pool, target, **asked) for target in targets]
    backend = LastingBackend()

    async def check(pool: Pool, position: int) -> None:
        batch, known = await sample(pool, targets[position], **asked), expected[position]
        assert equal(batch, known)
        assert batch.account.return_moments == known.account.return_moments

    async with pool_on(backend, env) as pool:
        await pool.update_agent([RandomSpec()])
        for position in range(2):
            await check(pool, position)
        # The client starts the call again while the interrupted call is still open.
        request = sample_request(targets[2], **asked)
        async with contextlib.aclosing(pool.sample(request)) as stuck:
            await anext(stuck)
            await check(pool, 2)
    async with pool_on(backend, env) as pool:
        await check(pool, 2)  # the client may not have got the account
        await check(pool, 3)
    backend.handles.clear()
    async with pool_on(backend, env, keep=False) as pool:
        await check(pool, 4)
        with raises(NotReadyError, field="fragments.row_step_count", reason=Reason.ROW_STEP_COUNT):
            await check(pool, 1)


async def test_takeover_begins_another_own_row_sequence() -> None:
    backend = LastingBackend()
    async with pool_on(backend) as pool:
        await pool.update_agent([RandomSpec()])
        first = await sample(pool, Fragments(80))
        seed = first.account.seed
    async with pool_on(backend, keep=False) as pool:
        other = await sample(pool, Fragments(80))
        assert other.account.seed != seed
        rest = await sample(pool, Fragments(80, row_step_count=10), seed=seed)
        assert rest.account.row_step_count == 10


def num_healthy(pool: Pool) -> int:
    return sum(worker.healthy for worker in pool.status().workers)


def sums(pool: Pool) -> tuple[int, int]:
    status = pool.status()
    return status.num_simulated_steps, status.num_worker_restarts


def totals(pool: Pool) -> list[tuple[int, int, str]]:
    workers = pool.status().workers
    return [(worker.num_simulated_steps, worker.num_restarts, worker.last_failure) for worker in workers]


async def test_takeover_keeps_the_number_of_workers() -> None:
    backend = LastingBackend()
    async with pool_on(backend) as pool:
        await pool.update_agent([RandomSpec()])
        await sample(pool, Fragments(80), seed=5)
        running = await begin_to_sample(pool, Fragments(40_000), seed=6)
        await pool.resize(3)
        await running
        await sample(pool, Fragments(120), seed=7)
    async with pool_on(backend, workers=2, keep=False) as pool:
        assert len(pool.status().workers) == 3
        for seed, clock in ((5, 10), (6, 5000)):  # from before the resize
            with raises(NotReadyError, field="fragments.row_step_count", reason=Reason.ROW_STEP_COUNT):
                await sample(pool, Fragments(120, row_step_count=clock), seed=seed)
        rest = await sample(pool, Fragments(120, row_step_count=10), seed=7)
        assert rest.num_steps == 120
        assert len(await sample(pool, Exactly(2), seed=1)) == 6
        assert await pool.resize(1) == 3


async def test_counters_never_fall_when_workers_leave_or_another_pool_takes_over() -> None:
    backend, counted = LastingBackend(), []
    env = rollserve.EnvSpec("sample_envs:FailsForSomeSeeds")
    async with pool_on(backend, env, workers=3, **NOTICE_SECONDS, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        await sample(pool, AtLeast(300), seed=1, skip_failed=True)
        for index in (0, 2):
            await kill_worker(pool, backend, index)
        before = sums(pool)
        assert before[0] >= 300
        assert before[1] == 2
        running = asyncio.create_task(sample(pool, AtLeast(6000), seed=2, skip_failed=True))
        await asyncio.sleep(0)  # it has begun, and no worker has answered yet
        await pool.resize(2)
        assert sums(pool) >= before
        assert any(worker.is_leaving for worker in pool.status().workers)
        await running
        await until(lambda: len(pool.status().workers) == 2)
        assert sums(pool)[0] >= before[0] + 6000
        assert sums(pool)[1] == 2
        counted.append((sums(pool), pool.status().counters, totals(pool)))
    async with pool_on(backend, env, keep=False, **MODULES) as pool:
        counted.append((sums(pool), pool.status().counters, totals(pool)))
    assert counted[0] == counted[1]
    _, counters, (first, _) = counted[1]
    assert min(counters.num_env_failures, counters.num_retried_episodes, counters.num_failed_episodes) > 0
    assert first[1:] == (1, "worker 0 is lost: killed by a test")


async def test_takeover_serves_with_the_workers_that_are_left() -> None:
    backend = LastingBackend()
    async with pool_on(backend) as pool:
        await pool.update_agent([RandomSpec()])
        expected = [await sample(pool, target, seed=1) for target in (AtLeast(500), Exactly(20))]
    del backend.handles[1]
    backend.is_roomy = False
    async with pool_on(backend, start_seconds=1) as pool:
        assert num_healthy(pool) == 1
        assert equal(await sample(pool, AtLeast(500), seed=1), expected[0])
        backend.is_roomy = True
        await until(lambda: num_healthy(pool) == 2)
        assert equal(await sample(pool, Exactly(20), seed=1), expected[1])
        (missing,) = (worker for worker in pool.status().workers if worker.num_restarts)
        assert missing.index == 1
    backend.is_roomy = False
    del backend.handles[0]
    async with pool_on(backend, min_healthy_workers=2, start_seconds=1) as pool:
        assert [worker.healthy for worker in pool.status().workers] == [False, True]
        with raises(TooFewWorkersError, reason=Reason.TOO_FEW_WORKERS, match=r"\b1\b.*\b2\b.*worker 0"):
            await sample(pool, AtLeast(1))
        backend.is_roomy = True
        await until(lambda: num_healthy(pool) == 2)
        assert equal(await sample(pool, AtLeast(500), seed=1), expected[0])
    with raises(InvalidValueError, field="min_healthy_workers", reason=Reason.INVALID_VALUE):
        async with pool_on(backend, workers=3, min_healthy_workers=3):
            pass
    async with pool_on(backend, keep=False) as pool:  # the failed start changed nothing
        assert pool.status().policy_version == 1


async def test_takeover_replaces_a_worker_that_hangs_while_it_gets_versions(tmp_path: Path) -> None:
    env = rollserve.EnvSpec("sample_envs:Hanging", {"folder": str(tmp_path)})
    limits: dict[str, Any] = {"step_seconds": 1.0, "reset_seconds": 1.0}
    backend = LastingBackend()
    async with pool_on(backend, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        await pool.update_env([env])
        expected = await sample(pool, Exactly(20), seed=1)
    del backend.handles[1]
    lay(tmp_path, "construction")
    async with pool_on(backend, keep=False, **MODULES, **limits) as pool:
        assert equal(await sample(pool, Exactly(20), seed=1), expected)
        # The other worker may have run everything meanwhile.
        await until(lambda: [worker.num_restarts for worker in pool.status().workers] == [0, 2])
        (_, made) = pool.status().workers
        assert made.last_failure.startswith("worker 1 ")
        assert made.last_failure.endswith(" 1 s")


async def test_takeover_restores_rows_that_stopped_early(tmp_path: Path) -> None:
    places = Places(tmp_path / "slow")
    env = places.env(step_seconds=0.05, most_steps=300)
    truth = await truth_of(env, 2, 1000)
    backend = LastingBackend()
    async with pool_on(backend, env, rows=2, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        calls = Calls(pool, truth)
        await calls(50)
        with places.slow(pool, 1):
            account = await calls(100, 0.5)
        assert account.workers[1].num_missing_steps > 0
    backend.handles.clear()
    async with pool_on(backend, env, rows=2, keep=False, **MODULES) as pool:
        account = await calls.continue_on(pool)(100)
        assert account.num_missing_steps == account.num_broken_off_episodes == 0
        await calls(30, 0.5)


class _TakenBackend(LastingBackend):
    """Workers left by a pool, except that the second one belongs to another server."""

    def find_worker(self, worker_index: int) -> Any:
        worker = super().find_worker(worker_index)
        if worker is None:
            return None
        call = worker.call

        async def refuse(method: Any, *arguments: Any) -> Any:
            if method is Worker.installed_versions and worker_index == 1:
                await asyncio.sleep(0.2)  # until the other has answered
                raise SamplerLostError("another server has the sampler")
            return await call(method, *arguments)

        worker.call = refuse
        return worker


async def test_takeover_kills_no_worker_of_another_server() -> None:
    backend = _TakenBackend()
    async with pool_on(backend):
        workers = dict(backend.handles)
    with raises(SamplerLostError, reason=Reason.SAMPLER_TAKEN):
        async with pool_on(backend):
            pass
    assert backend.handles == workers
    for worker in workers.values():
        await worker.heartbeat()  # raises if the worker is lost


@pytest.mark.parametrize(
    ("changes", "env", "field"),
    [
        ({"seed": 8}, CARTPOLE, "seed"),
        ({"rows": 3}, CARTPOLE, "rows"),
        ({"max_episode_length": 10}, CARTPOLE, "max_episode_length"),
        ({"worker_buffer_bytes": 5}, CARTPOLE, "worker_buffer_bytes"),
        ({"env_retries": 7}, CARTPOLE, "env_retries"),
        ({"check_observations": True}, CARTPOLE, "check_observations"),
        ({}, rollserve.EnvSpec("CartPole-v1", {"max_episode_steps": 9}), "all_workers.environment"),
    ],
)
async def test_takeover_rejects_settings_that_differ_from_the_samplers(
    changes: dict[str, Any], env: rollserve.EnvSpec, field: str
) -> None:
    backend = LastingBackend()
    async with pool_on(backend):
        pass
    with raises(InvalidValueError, field=field, reason=Reason.INVALID_VALUE, match="--no-adopt"):
        await Pool.start(backend, settings(**changes), env)
    async with pool_on(backend, keep=False):  # the failed start changed nothing
        pass


async def test_takeover_prefers_what_clients_have_set_over_settings() -> None:
    backend, other = LastingBackend(), rollserve.EnvSpec("Acrobot-v1")
    async with pool_on(backend) as pool:
        await pool.update_env([other])
    changes: dict[str, Any] = {"seed": None, "workers": 3}
    async with pool_on(backend, rollserve.EnvSpec("MountainCar-v0"), keep=False, **changes) as pool:
        status = pool.status()
        assert (status.env_specs, status.env_version, len(status.workers)) == ([other], 2, 2)


def test_lease_has_one_owner_at_a_time() -> None:
    now = 0.0
    lease, first, second = Lease(5, lambda: now), Owner("here", 1), Owner("there", 2)
    assert lease.idle_seconds < 0
    assert lease.acquire(first) == 1
    now = 4
    assert lease.acquire(second) is None
    assert lease.renew(1)
    now = 8
    assert lease.acquire(second) is None
    assert lease.idle_seconds == -1
    now = 10
    assert lease.renew(1)  # late, but nobody else has claimed it
    now = 16
    assert (lease.acquire(second), lease.owner) == (2, second)
    assert not lease.renew(1)
    lease.release(1)  # an owner that has lost it
    assert lease.acquire(first) is None
    lease.release(2)
    now = 17
    assert lease.acquire(first) == 3
    assert lease.idle_seconds < 0
    lease.release(3, unused=True)
    assert lease.idle_seconds == 1  # since the end of the second owner
    assert lease.acquire(first) == 4
    fresh = Lease(5, lambda: now)  # in a journal that replaces a lost one
    assert fresh.acquire(first, 3) == 3
    assert fresh.acquire(second) is None
    assert fresh.acquire(first, 3) == 3  # the owner claims it again
    assert fresh.acquire(second, 2) is None
    assert fresh.acquire(second, 4) == 4  # a later epoch
    assert not fresh.renew(3)


def test_lease_that_replaces_a_lost_one_is_the_last_owners_for_a_while() -> None:
    now = 0.0
    first, second = Owner("here", 1), Owner("there", 2)
    lease = Lease(5, lambda: now, last_epoch=3)
    assert lease.acquire(second) is None
    assert lease.acquire(first, 3) == 3
    lease = Lease(5, lambda: now, last_epoch=3)
    now = 5.0
    assert lease.acquire(second) == 4
    assert lease.acquire(first, 3) is None
