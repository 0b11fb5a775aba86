"""What workers wrote is lost on its way, with the machine that holds it, and they live on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pools import adds_up, pool_of, sample
from support import equal
from test_interleavings import NATIVE, ROWS
from unreliable import ForgetfulBackend

import rollserve
from rollserve_server.agents import RandomSpec
from rollserve_server.pool import AtLeast, Exactly, Fragments, InProcessBackend, Target
from rollserve_server.sampling import stream_work

FULL: dict[str, Any] = {"worker_buffer_bytes": 4000, "window_bytes": 3000}
_CALLS = 2
_LONG_SECONDS = 10.0


@pytest.fixture
def small_parcels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most claims come in several parcels: of some a part is lost that others follow."""
    monkeypatch.setattr(stream_work, "_PARCELS_BYTES", 1)
    monkeypatch.setattr(stream_work, "_EARLY_BYTES", -1)  # what is written early comes in one


@pytest.mark.usefixtures("small_parcels")
@pytest.mark.parametrize("num_workers", [1, 3])
@pytest.mark.parametrize(
    ("env", "target", "options"),
    [
        pytest.param(NATIVE, AtLeast(100), {}, id="blocks"),
        pytest.param(NATIVE, AtLeast(100), FULL, id="blocks, full"),
        pytest.param(ROWS, AtLeast(100), {}, id="rows"),
        pytest.param(ROWS, AtLeast(100), FULL, id="rows, full"),
        pytest.param(ROWS, Exactly(6), FULL, id="exactly, full"),
        pytest.param(ROWS, Fragments(120), FULL, id="fragments, full"),
    ],
)
async def test_what_is_lost_is_made_again(
    env: rollserve.EnvSpec, target: Target | Fragments, options: dict[str, Any], num_workers: int
) -> None:
    async with pool_of(InProcessBackend(), env, num_workers=num_workers) as pool:
        await pool.update_agent([RandomSpec()])
        expected = [await sample(pool, target, max_message_bytes=1000) for _ in range(_CALLS)]
    num_retried = 0
    for seed in range(3):
        backend = ForgetfulBackend(seed, num_losses=4)
        async with pool_of(backend, env, num_workers=num_workers, unit_retries=10, **options) as pool:
            await pool.update_agent([RandomSpec()])
            for call in range(_CALLS):
                async with asyncio.timeout(_LONG_SECONDS):
                    batch = await sample(pool, target, max_message_bytes=1000)
                assert equal(batch, expected[call]), (seed, call)
                assert batch.account is not None
                assert adds_up(batch.account)
                num_retried += batch.account.num_retried_episodes
    assert num_retried > 0
