"""Results that are lost with the machine that holds them, while their workers live on."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from pools import adds_up, pool_of, sample
from shuffled_workers import NATIVE, ROWS
from support import equal
from unreliable import ForgetfulBackend, MortalBackend

import rollserve
from rollserve_server.agents import RandomSpec
from rollserve_server.pool import AtLeast, Exactly, Fragments, InProcessBackend, Target
from rollserve_server.pool.calls.claims import Claims, PendingDelivery
from rollserve_server.pool.plan.claiming import PlannedClaim
from rollserve_server.sampling import Message, Parcel
from rollserve_server.sampling.work import claims as work_claims
from rollserve_server.sampling.work import episodes as work_episodes

FULL: dict[str, Any] = {"worker_buffer_bytes": 4000, "call_window_bytes": 3000}
_CALLS = 2
_LONG_SECONDS = 10.0


@pytest.fixture
def small_parcels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Split most claims into several parcels, so that a loss can be followed by parcels of the same claim."""
    monkeypatch.setattr(work_claims, "_PARCELS_BYTES", 1)
    monkeypatch.setattr(work_episodes, "_MAX_EARLY_BYTES", -1)  # nothing is written ahead of its claim


async def check_calls(
    backends: Sequence[InProcessBackend], env: rollserve.EnvSpec, target: Target | Fragments, **options: Any
) -> None:
    """Check that calls deliver the same as without losses, that accounts add up, and that something was retried."""
    async with pool_of(InProcessBackend(), env, workers=options["workers"]) as pool:
        await pool.update_agent([RandomSpec()])
        expected = [await sample(pool, target, max_message_bytes=1200) for _ in range(_CALLS)]
    num_retried = 0
    for number, backend in enumerate(backends):
        async with pool_of(backend, env, **options) as pool:
            await pool.update_agent([RandomSpec()])
            for call in range(_CALLS):
                async with asyncio.timeout(_LONG_SECONDS):
                    batch = await sample(pool, target, max_message_bytes=1200)
                assert equal(batch, expected[call]), (number, call)
                assert adds_up(batch.account), (number, call)
                assert min(batch.account.num_kept_steps, batch.account.num_lost_steps) >= 0, (number, call)
                num_retried += batch.account.num_retried_episodes
    assert num_retried > 0


@pytest.mark.usefixtures("small_parcels")
@pytest.mark.parametrize(
    ("env", "target", "options", "num_workers"),
    [
        (NATIVE, AtLeast(100), {}, 1),
        (NATIVE, AtLeast(100), FULL, 3),
        (ROWS, AtLeast(100), {}, 3),
        (ROWS, AtLeast(100), FULL, 1),
        (ROWS, Exactly(6), FULL, 3),
        (ROWS, Fragments(120), FULL, 3),
        pytest.param(NATIVE, AtLeast(100), {}, 3, marks=pytest.mark.slow),
        pytest.param(NATIVE, AtLeast(100), FULL, 1, marks=pytest.mark.slow),
        pytest.param(ROWS, AtLeast(100), {}, 1, marks=pytest.mark.slow),
        pytest.param(ROWS, AtLeast(100), FULL, 3, marks=pytest.mark.slow),
        pytest.param(ROWS, Exactly(6), FULL, 1, marks=pytest.mark.slow),
        pytest.param(ROWS, Fragments(120), FULL, 1, marks=pytest.mark.slow),
    ],
)
async def test_lost_results_are_sampled_again(
    env: rollserve.EnvSpec, target: Target | Fragments, options: dict[str, Any], num_workers: int
) -> None:
    backends = [ForgetfulBackend(seed, num_losses=4) for seed in range(3)]
    await check_calls(backends, env, target, workers=num_workers, unit_retries=10, **options)


def test_lost_steps_are_charged_to_the_worker_that_wrote_them() -> None:
    claims = Claims(10_000, itertools.count(), pinned=False)
    payload: Any = None  # never read

    def write(worker: int, claim_id: int, num_steps: int, start: tuple[int, int], stop: tuple[int, int]) -> None:
        message = Message(offset=0, size=100, num_steps=num_steps, num_episodes=0)
        parcel = Parcel(claim_id, (message,), start, stop, complete=stop == (2, 0))
        assert claims.take(PendingDelivery(worker, payload, parcel)) == []

    assert claims.add(PlannedClaim(worker=0, start=0, stop=2, num_bytes=100)) is None
    (first,) = claims.to_ask(0)
    write(0, first.claim_id, 7, (0, 0), (1, 0))
    assert claims.lose(0) == [1]
    assert claims.to_begin(1) == [range(1, 2)]
    assert claims.finish(1, 1)
    (requested,) = claims.to_ask(1)
    write(1, requested.claim_id, 5, (1, 0), (2, 0))
    lost, num_steps, cancellations = claims.lose_first_delivery()
    assert (lost, num_steps, cancellations) == ([0, 1], {0: 7, 1: 5}, [])


@pytest.mark.usefixtures("small_parcels")
@pytest.mark.parametrize(
    ("env", "target"),
    [
        (NATIVE, AtLeast(100)),
        (ROWS, Fragments(120)),
        pytest.param(NATIVE, Fragments(120), marks=pytest.mark.slow),
        pytest.param(ROWS, AtLeast(100), marks=pytest.mark.slow),
    ],
)
async def test_results_lost_with_their_workers_are_sampled_again(
    env: rollserve.EnvSpec, target: Target | Fragments
) -> None:
    backends = [MortalBackend(seed, num_deaths=6, with_machines=True) for seed in range(6)]
    await check_calls(backends, env, target, workers=3, unit_retries=20, **FULL)
