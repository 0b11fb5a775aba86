"""Calls that continue each other's open work in other forms deliver what an undisturbed sampler delivers."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from pools import Reading, adds_up, kill_one, lose_worker, pool_of, sample, sample_request
from shuffled_workers import ShuffledBackend
from support import equal
from unreliable import MortalBackend

import rollserve
from rollserve_server.agents import ConstantSpec, RandomSpec
from rollserve_server.pool import (
    AtLeast,
    Backend,
    Delivery,
    Exactly,
    InAll,
    InProcessBackend,
    MessageFormat,
    Pool,
    SampleRequest,
)
from rollserve_server.pool.workers.restarts import Restarts
from rollserve_server.sampling import ColumnFormat
from rollserve_wire.v1 import sampler_service_pb2 as pb
from rollserve_wire.v1 import tensor_pb2

LZ4 = tensor_pb2.COMPRESSION_LZ4
STACKED = rollserve.Wrapper("FrameStackObservation", {"stack_size": 4})
ENVS: dict[str, rollserve.EnvSpec] = {
    "rows": rollserve.EnvSpec("CartPole-v1", wrappers=[STACKED], vectorization="rows", num_rows=4),
    "native": rollserve.EnvSpec("CartPole-v1", vectorization="native", num_rows=4, num_episodes_per_row=2),
}
FORMS: dict[str, MessageFormat] = {
    "plain": MessageFormat(1 << 22),
    "compressed": MessageFormat(1 << 22, ColumnFormat(LZ4)),
    "frames once": MessageFormat(1 << 22, ColumnFormat(frames_once=True)),
    "small messages": MessageFormat(2500),
    "discarded": MessageFormat(1 << 22, None),
}
Kinds = Sequence[type[AtLeast | InAll | Exactly]]
KINDS: dict[str, Kinds] = {"steps": [AtLeast], "exact": [Exactly], "mixed": [AtLeast, InAll, Exactly]}
EACH_KIND = pytest.mark.parametrize(
    "kinds",
    [pytest.param(kinds, id=name, marks=[pytest.mark.slow] * (name != "mixed")) for name, kinds in KINDS.items()],
)
_NUM_EPISODES = 400
_NUM_CALLS = 8
_MAX_SECONDS = 30.0


@dataclass
class Reference:
    """An undisturbed pool with as many workers, and its episodes by seed and `max_episode_length`."""

    pool: Pool
    episodes: dict[tuple[int, int | None], list[rollserve.EpisodeBatch]] = field(default_factory=dict)

    async def batch(self, request: SampleRequest, account: rollserve.Account) -> rollserve.EpisodeBatch:
        """Return what a call has to deliver whose seed and first index are in its account."""
        seed, first, target = account.seed, account.first_episode_index, request.target
        options = {"seed": seed, "max_episode_length": (limit := request.options.max_episode_length)}
        if isinstance(target, Exactly):  # where rows are stepped together, these depend on where a worker's begin
            return await sample(self.pool, target, first_index=first, **options)
        if (seed, limit) not in self.episodes:
            self.episodes[seed, limit] = (await sample(self.pool, InAll(_NUM_EPISODES), **options)).split()
        episodes = self.episodes[seed, limit][first:]
        if isinstance(target, AtLeast):
            ends = np.cumsum([episode.num_steps for episode in episodes])
            num_episodes = int(np.searchsorted(ends, target.num_steps)) + 1
        else:
            num_episodes = target.num_episodes
        assert num_episodes <= len(episodes)
        return rollserve.EpisodeBatch.concatenate(*episodes[:num_episodes]).joined()


@contextlib.asynccontextmanager
async def reference_for(env: rollserve.EnvSpec, num_workers: int = 2) -> AsyncIterator[Reference]:
    async with pool_of(InProcessBackend(), env, workers=num_workers) as pool:
        await pool.update_agent([RandomSpec()])
        yield Reference(pool)


def drawn_request(source: random.Random, kinds: Kinds) -> SampleRequest:
    """Return a request with a random form and target. Only chains of several kinds have several limits, too."""
    kind, form = source.choice(kinds), source.choice(list(FORMS.values()))
    return sample_request(
        kind(source.choice([1, 60, 150, 400]) if kind is AtLeast else source.choice([1, 5, 12])),
        form.max_message_bytes,
        columns=form.columns,
        prefetch=source.random() < 0.2,
        max_episode_length=source.choice([None, None, 9]) if len(kinds) > 1 else None,
    )


async def check_call(pool: Pool, request: SampleRequest, reference: Reference) -> None:
    """Check that a call delivers the reference's episodes in its own form, and that its account adds up."""
    reading = await deliveries(pool, request)
    account = reading.account()
    assert adds_up(account)
    assert min(account.num_kept_steps, account.num_lost_steps, account.num_idle_steps) >= 0
    expected = await reference.batch(request, account)
    num_expected = expected.num_steps, len(expected)
    if request.messages.columns is None:
        assert not reading.parts
        assert (account.num_discarded_steps, account.num_discarded_episodes) == num_expected
    else:
        assert (account.num_steps, account.num_episodes) == num_expected
        assert equal(reading.batch(), expected)


async def deliveries(pool: Pool, request: SampleRequest) -> Reading:
    """Return what a client reads of a call, after a check of the form of its messages."""
    reading = Reading()
    async with contextlib.aclosing(pool.sample(request)) as items:
        async for item in items:
            if isinstance(item, Delivery):
                for message in item.messages:
                    check_form(item.buffer[message.offset : message.offset + message.size].tobytes(), request.messages)
            reading.add(item)
    return reading


def check_form(data: bytes, messages: MessageFormat) -> None:
    """Check that a message has the form that its call asks for, as far as messages differ in it."""
    assert messages.columns is not None
    assert len(data) <= messages.max_message_bytes
    batch = pb.ObtainSamplesResponse.FromString(data).batch
    accepted = {0, messages.columns.compression or 0}
    assert {column.tensor.compression for column in (*batch.observations, *batch.actions)} <= accepted
    assert not batch.frame_stacks or messages.columns.frames_once


async def check_chain(
    pool: Pool,
    reference: Reference,
    kinds: Kinds,
    source: random.Random,
    disturb: Callable[[], object] = lambda: None,
) -> None:
    """Check a chain of drawn calls: each continues where the one before it has ended.

    Args:
        pool: the pool.
        reference: the episodes of the same environment.
        kinds: kinds of the calls' targets.
        source: random numbers for the calls.
        disturb: called between and during the calls.
    """
    await pool.update_agent([RandomSpec()])
    for _ in range(_NUM_CALLS):
        if source.random() < 0.5:
            disturb()
        call = asyncio.create_task(check_call(pool, drawn_request(source, kinds), reference))
        async with asyncio.timeout(_MAX_SECONDS):
            if source.random() < 0.5:
                await asyncio.sleep(source.choice([0, 1e-3, 5e-3]))
                disturb()
            await call


@pytest.mark.parametrize("num_workers", [pytest.param(1, marks=pytest.mark.slow), 3])
@EACH_KIND
@pytest.mark.parametrize("env", ENVS.values(), ids=ENVS)
async def test_mixed_calls_deliver_the_same_in_any_order_of_events(
    env: rollserve.EnvSpec, kinds: Kinds, num_workers: int
) -> None:
    async with reference_for(env, num_workers) as reference:
        for seed in range(3):
            full: dict[str, Any] = {"worker_buffer_bytes": 4000, "call_window_bytes": 3000} if seed == 2 else {}
            async with pool_of(ShuffledBackend(seed), env, workers=num_workers, **full) as pool:
                await check_chain(pool, reference, kinds, random.Random(seed))


@pytest.mark.parametrize("form", [FORMS["compressed"], FORMS["discarded"]], ids=["compressed", "discarded"])
async def test_calls_deliver_nothing_that_was_written_in_another_form(form: MessageFormat) -> None:
    """Episodes are longer than estimated, so that a call is over while workers still run what the next one claims."""
    env = ENVS["rows"]
    async with pool_of(InProcessBackend(), env, workers=1) as pool:
        expected = await batches_between_calls(pool, MessageFormat(1 << 22))
    for seed in range(10):
        async with pool_of(ShuffledBackend(seed), env, workers=3) as pool:
            assert all(map(equal, await batches_between_calls(pool, form), expected)), seed


async def batches_between_calls(pool: Pool, form: MessageFormat) -> list[rollserve.EpisodeBatch]:
    """Return the batches of plain calls: each continues a call for messages in a form."""
    await pool.update_agent([ConstantSpec({"": np.array(0)})])
    await sample(pool, AtLeast(300))
    await pool.update_agent([RandomSpec()])
    batches = []
    for _ in range(8):
        await deliveries(pool, sample_request(AtLeast(30), form.max_message_bytes, columns=form.columns))
        batches.append((await deliveries(pool, sample_request(AtLeast(1)))).batch())
    return batches


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace lost workers at once, however many there are."""
    monkeypatch.setattr(Restarts, "pause_seconds", lambda *_: 0.0)


def lose_one(pool: Pool, source: random.Random) -> None:
    """Have the pool take a random worker for lost."""
    lose_worker(pool, source.randrange(len(pool.status().workers)))


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.parametrize("num_workers", [2, pytest.param(3, marks=pytest.mark.slow)])
@EACH_KIND
@pytest.mark.parametrize("env", ENVS.values(), ids=ENVS)
async def test_mixed_calls_deliver_the_same_when_workers_are_lost(
    env: rollserve.EnvSpec, kinds: Kinds, num_workers: int
) -> None:
    options: dict[str, Any] = {"workers": num_workers, "unit_retries": 10, "worker_restarts_per_hour": 1000}
    async with reference_for(env, num_workers) as reference:
        for seed in range(4):
            source = random.Random(seed)
            backend = MortalBackend(seed, num_deaths=6, with_machines=seed % 2 == 1)
            async with pool_of(backend, env, **options) as pool:
                await check_chain(pool, reference, kinds, source, functools.partial(lose_one, pool, source))


@pytest.mark.parametrize("env", ENVS.values(), ids=ENVS)
async def test_mixed_calls_deliver_the_same_on_real_workers(backend: Backend, env: rollserve.EnvSpec) -> None:
    async with reference_for(env) as reference, pool_of(backend, env) as pool:
        await check_chain(pool, reference, KINDS["mixed"], random.Random(1))


@EACH_KIND
async def test_mixed_calls_deliver_the_same_when_processes_are_killed(ray_backend: Backend, kinds: Kinds) -> None:
    env, source, kills = ENVS["rows"], random.Random(2), 3
    async with reference_for(env) as reference, pool_of(ray_backend, env, unit_retries=10) as pool:

        def kill_sometimes() -> None:
            nonlocal kills
            if kills and any(worker.healthy for worker in pool.status().workers):
                kills -= 1
                kill_one(pool, source)

        await check_chain(pool, reference, kinds, source, kill_sometimes)
