"""Environments of profiles on the workers, in evaluations, and in samplers that outlive their server."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from faults.test_journal import LastingBackend, pool_on
from pools import RecordingBackend, evaluate, pool_of, sample
from support import raises

from rollserve import EnvChange, EnvSpec, Reason
from rollserve_server.agents import RandomSpec
from rollserve_server.envs import ProfileEnv
from rollserve_server.errors import InvalidValueError, NotFoundError, WorkerLostError
from rollserve_server.pool import AtLeast, Backend, RowUpdates

SIZES = {"properties": {"size": {"type": "integer", "maximum": 9}}}
PROFILES: dict[str, Any] = {
    "tasks": {"env": "sample_envs:Tasks", "rows": 2, "env_kwargs": {"size": 2}, "arguments": SIZES}
}


@pytest.mark.usefixtures("sandboxes_find_test_agents", "without_recycling")
async def test_workers_step_the_environment_of_the_profile(backend: Backend) -> None:
    recording = RecordingBackend(backend)
    async with pool_of(recording, EnvSpec("profile:tasks"), profiles=PROFILES) as pool:
        await pool.update_agent([RandomSpec()])
        assert set((await sample(pool, AtLeast(8), seed=1)).observations[:, 0]) == {2.0}
        first = await evaluate(pool, 4, env=EnvSpec("profile:tasks", {"size": 3}))
        again = await evaluate(pool, 4, env=EnvSpec("profile:tasks", {"size": 3}))
        assert first.outcomes == again.outcomes
        await pool.update_env([EnvChange({"size": 4})])
        recording.handles[0].kill(WorkerLostError("killed by the test", 0))
        assert set((await sample(pool, AtLeast(8), seed=1)).observations[:, 0]) == {4.0}
        await pool.resize(3)
        assert set((await sample(pool, AtLeast(8), seed=1)).observations[:, 0]) == {4.0}
        await pool.update_env([RowUpdates((EnvChange({"size": 5}), EnvSpec("profile:tasks")))])
        assert set((await sample(pool, AtLeast(8), seed=1)).observations[:, 0]) == {5.0, 2.0}
        with raises(InvalidValueError, field="all_workers.per_row.updates[0].change.kwargs_json.size"):
            await pool.update_env([RowUpdates((EnvChange({"size": 10}), None))])


async def test_profile_is_in_the_journal_with_its_name() -> None:
    backend = LastingBackend()
    async with pool_on(backend, profiles=PROFILES) as pool:
        await pool.update_env([EnvSpec("profile:tasks", {"size": 3})])
        await pool.update_agent([RandomSpec()])
        before = pool.status()
    left = backend.left()
    assert left is not None
    (kept,) = left.envs[2].version.specs
    assert isinstance(kept, ProfileEnv)
    assert (kept.id, kept.profile, kept.kwargs, kept.arguments) == (
        "sample_envs:Tasks",
        "tasks",
        {"size": 3},
        {"size": 3},
    )
    async with pool_on(backend, profiles=PROFILES) as pool:
        assert pool.status().env_specs == before.env_specs
        await pool.update_env([EnvChange({"size": 4})])
        assert set((await sample(pool, AtLeast(8), seed=1)).observations[:, 0]) == {4.0}
    async with pool_on(backend, keep=False) as pool:  # a server without the profile goes on, and cannot change it
        assert np.all((await sample(pool, AtLeast(8), seed=1)).observations[:, 0] == 4.0)
        with raises(NotFoundError, field="all_workers.change.id", reason=Reason.PROFILE_NOT_FOUND):
            await pool.update_env([EnvChange({"size": 5})])
