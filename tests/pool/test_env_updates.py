"""Updates replace environments or change them in place, on all workers or on none."""

from __future__ import annotations

import asyncio

import pytest
from pools import pool_of, sample
from support import raises

import rollserve
from rollserve import EnvChange, EnvSpec, Reason, Task
from rollserve_server.agents import RandomSpec
from rollserve_server.pool import AtLeast, InProcessBackend

TASKS = "sample_envs:Tasks"


@pytest.fixture
def tasks(sampler: rollserve.Sampler) -> rollserve.Sampler:
    sampler.update_env(TASKS)
    sampler.update_agent(rollserve.RandomAgent())
    return sampler


def seen(sampler: rollserve.Sampler) -> list[list[float]]:
    """Return size, task and start of each worker's environments, as their observations show them."""
    batch = sampler.obtain_exact_episodes(4)
    assert (batch.observations[::4] == batch.observations[3::4]).all()
    return batch.observations[::4].tolist()


def made(sampler: rollserve.Sampler) -> set[tuple[int, int]]:
    """Return worker and number of the environments that episodes run in."""
    batch = sampler.obtain_exact_episodes(4)
    assert batch.worker_indices is not None
    return set(zip(batch.worker_indices.tolist(), batch.episode_infos["number"].tolist(), strict=True))


def test_task_is_set_without_a_new_environment(tasks: rollserve.Sampler) -> None:
    before = made(tasks)
    version = tasks.status().env_version
    tasks.obtain_samples(3)  # workers begin more episodes than these
    updated = tasks.update_env(EnvChange(task=Task("set_task", {"goal": 7})))
    assert updated.env_version == version + 1
    assert seen(tasks) == [[1, 7, 0], [1, 7, 0]]
    tasks.update_env(EnvChange(task=Task("set_task", {"goal": 8})))
    assert seen(tasks) == [[1, 8, 0], [1, 8, 0]]
    assert made(tasks) == before
    assert tasks.status().envs[0].task == Task("set_task", {"goal": 8})


def test_new_arguments_make_a_new_environment_with_its_task(tasks: rollserve.Sampler) -> None:
    before = made(tasks)
    tasks.update_env(EnvChange(task=Task("set_task", {"goal": 3})))
    tasks.update_env(EnvChange(kwargs={"size": 5}))
    assert seen(tasks) == [[5, 3, 0], [5, 3, 0]]
    assert made(tasks).isdisjoint(before)
    tasks.update_env(TASKS)
    assert seen(tasks) == [[1, 0, 0], [1, 0, 0]]


def test_reset_options_are_passed_to_each_reset(tasks: rollserve.Sampler) -> None:
    before = made(tasks)
    tasks.update_env(EnvChange(reset_options={"start": 4}))
    assert seen(tasks) == [[1, 0, 4], [1, 0, 4]]
    tasks.update_env(EnvChange())
    assert seen(tasks) == [[1, 0, 4], [1, 0, 4]]
    tasks.update_env(EnvChange(reset_options={}))
    assert seen(tasks) == [[1, 0, 0], [1, 0, 0]]
    assert made(tasks) == before


def test_updates_may_differ_between_workers(tasks: rollserve.Sampler) -> None:
    tasks.update_env(per_worker=[EnvChange(task=Task("set_task", {"goal": 1})), EnvSpec(TASKS, {"size": 9})])
    assert seen(tasks) == [[1, 1, 0], [9, 0, 0]]
    tasks.update_env(EnvChange(reset_options={"start": 2}))
    assert seen(tasks) == [[1, 1, 2], [9, 0, 2]]


def test_earlier_version_keeps_its_task(tasks: rollserve.Sampler) -> None:
    versions = [tasks.update_env(EnvChange(task=Task("set_task", {"goal": goal}))).env_version for goal in (1, 2, 3)]
    for goal, version in zip((1, 2, 3, 1), (*versions, versions[0]), strict=True):
        batch = tasks.obtain_samples(5, seed=1, env_version=version)
        assert set(batch.observations[:, 1].tolist()) == {goal}


@pytest.mark.parametrize(
    ("change", "reason", "field", "quotes"),
    [
        (
            EnvChange(task=Task("set_task", {"goal": -1})),
            Reason.ENV_REFUSED,
            "change.task.argument_json",
            ("set_task", "ValueError"),
        ),
        (
            EnvChange(task=Task("set_task", 5)),
            Reason.ENV_REFUSED,
            "change.task.argument_json",
            ("set_task", "TypeError"),
        ),
        (
            EnvChange(task=Task("set_task_for_admins", 1)),
            Reason.METHOD_NOT_ALLOWED,
            "change.task.method",
            ("'set_task_for_admins'", "'set_task'"),
        ),
        (EnvChange(task=Task("close", None)), Reason.METHOD_NOT_ALLOWED, "change.task.method", "'close'"),
        (EnvChange(kwargs={"nope": 1}), Reason.ENV_REFUSED, "change.kwargs_json", "'nope'"),
        (
            EnvSpec("CartPole-v1", task=Task("set_task", 1)),
            Reason.INVALID_VALUE,
            "environment.task.method",
            "'set_task'",
        ),
    ],
)
def test_rejected_change_changes_nothing(
    tasks: rollserve.Sampler, change: EnvChange | EnvSpec, reason: Reason, field: str, quotes: str | tuple[str, ...]
) -> None:
    tasks.update_env(EnvChange(task=Task("set_task", {"goal": 6})))
    before = tasks.status()
    good = EnvChange(task=Task("set_task", {"goal": 7}))
    for update in ({"env": change}, {"per_worker": [good, change]}):
        where = "all_workers" if "env" in update else "per_worker.updates[1]"
        with raises(rollserve.InvalidArgumentError, field=f"{where}.{field}", reason=reason, quotes=quotes):
            tasks.update_env(**update)
        assert tasks.status().env_version == before.env_version
        assert seen(tasks) == [[1, 6, 0], [1, 6, 0]]


async def test_async_client_sets_tasks(tasks: rollserve.Sampler, server: object) -> None:
    async with rollserve.aconnect(server.address) as distant:  # type: ignore[attr-defined]
        updated = await distant.update_env(EnvChange(task=Task("set_task", {"goal": 2})))
        batch = await distant.obtain_samples(5)
    assert updated.env_version == tasks.status().env_version
    assert batch.observations[0].tolist() == [1, 2, 0]


async def test_task_of_another_method_makes_a_new_environment() -> None:
    """The state set by the first method would otherwise remain in some rows only."""
    modules, methods = frozenset({"sample_envs"}), frozenset({"set_task", "set_other_task"})
    async with pool_of(
        InProcessBackend(), EnvSpec(TASKS), workers=1, allow_module=modules, allow_method=methods
    ) as pool:
        await pool.update_agent([RandomSpec()])
        await pool.update_env([EnvChange(task=Task("set_task", {"goal": 1}))])
        await pool.update_env([EnvChange(task=Task("set_other_task", 2))])
        batches = await asyncio.gather(*(sample(pool, AtLeast(5), seed=1) for _ in range(2)))
    for batch in batches:
        assert set(batch.observations[:, 1].tolist()) == {0}
