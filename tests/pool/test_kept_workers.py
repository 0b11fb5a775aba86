"""Updates for each worker that leave some workers as they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import raises, server_environment

import rollserve
from rollserve import EnvChange, EnvSpec, Reason, Task
from rollserve_server.local import LocalServer, local_server

TASKS = "sample_envs:Tasks"


@pytest.fixture(scope="module")
def three_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """A server with three workers of two rows each."""
    log: Path = tmp_path_factory.mktemp("kept") / "server.log"
    options = ("--env", TASKS, "--workers", "3", "--rows", "2", "--backend", "in-process", "--allow-module")
    with local_server(*options, "sample_envs", log=log, environment=server_environment()) as server:
        yield server


@pytest.fixture
def trio(three_workers: LocalServer) -> Iterator[rollserve.Sampler]:
    """The server's sampler, as it was at its start."""
    three_workers.reset()
    with rollserve.connect(three_workers.address) as sampler:
        yield sampler


def constant(action: int) -> rollserve.ConstantAgent:
    return rollserve.ConstantAgent(np.int64(action))


def goal(number: int) -> EnvChange:
    return EnvChange(task=Task("set_task", {"goal": number}))


def actions(sampler: rollserve.Sampler) -> list[int]:
    """Return the action of each worker."""
    batch = sampler.obtain_exact_episodes(2, seed=1)
    (rows,) = np.unique(batch.actions.reshape(3, 2), axis=1).T
    return rows.tolist()


def sizes_and_tasks(sampler: rollserve.Sampler) -> list[list[int]]:
    """Return the sizes and tasks of each worker's rows, joined: size + 100 * task."""
    observations = sampler.obtain_exact_episodes(2, seed=1).observations.reshape(3, 2, 3)
    return (observations[..., 0] + 100 * observations[..., 1]).astype(int).tolist()


def test_worker_without_an_update_keeps_its_agent(trio: rollserve.Sampler) -> None:
    trio.update_agent(constant(0))
    version = trio.update_agent(per_worker=[None, constant(1), None])
    assert actions(trio) == [0, 1, 0]
    assert trio.update_agent(per_worker=[constant(1), None, None]) == version + 1
    assert actions(trio) == [1, 1, 0]
    assert trio.obtain_exact_episodes(1, policy_version=version).actions.tolist() == [0, 1, 0]
    kept = trio.update_agent(per_worker=[None, constant(1), None], skip_if_identical=True)
    assert kept == version + 1
    assert trio.update_agent(per_worker=[None, constant(0), None], skip_if_identical=True) == version + 2


def test_worker_keeps_its_parameters_beside_other_updates(trio: rollserve.Sampler) -> None:
    status = trio.status()
    agents = [
        rollserve.MlpAgent.initial(status.observation_space, status.action_space, hidden_sizes=(), seed=seed)
        for seed in range(3)
    ]
    trio.update_agent(per_worker=agents)
    trio.update_agent(per_worker=[agents[2].parameters, None, constant(1)])
    for worker, expected in ((0, agents[2].parameters), (1, agents[1].parameters)):
        got = trio.agent_parameters(worker=worker)
        assert all(np.array_equal(got[name], value) for name, value in expected.items())
    assert trio.status().agent_kinds == ("mlp", "mlp", "constant")


def test_no_agent_can_be_kept_before_the_first(trio: rollserve.Sampler) -> None:
    with raises(rollserve.PreconditionError, field="per_worker.updates[1]", reason=Reason.NO_AGENT):
        trio.update_agent(per_worker=[constant(0), None, constant(0)])
    assert trio.status().policy_version == 0


def test_worker_without_an_update_keeps_its_environments(trio: rollserve.Sampler) -> None:
    trio.update_agent(constant(0))
    trio.update_env(EnvSpec(TASKS, {"size": 5}))
    updated = trio.update_env(per_worker=[None, EnvSpec(TASKS, {"size": 7}), goal(2)])
    assert sizes_and_tasks(trio) == [[5, 5], [7, 7], [205, 205]]
    # Rows with environments of their own are kept, too.
    trio.update_env(per_worker=[[EnvSpec(TASKS, {"size": 1}), goal(3)], None, None])
    assert sizes_and_tasks(trio) == [[1, 305], [7, 7], [205, 205]]
    trio.update_env(per_worker=[None, goal(4), None])
    assert sizes_and_tasks(trio) == [[1, 305], [407, 407], [205, 205]]
    old = trio.obtain_exact_episodes(1, env_version=updated.env_version)
    assert old.observations[:, 0].tolist() == [5, 7, 5]


async def test_asynchronous_client_keeps_workers(trio: rollserve.Sampler, three_workers: LocalServer) -> None:
    async with rollserve.aconnect(three_workers.address) as sampler:
        await sampler.update_agent(constant(1))
        await sampler.update_agent(per_worker=[None, constant(0), None])
        await sampler.update_env(per_worker=[None, None, EnvSpec(TASKS, {"size": 9})])
        batch = await sampler.obtain_exact_episodes(1, seed=1)
        assert batch.actions.tolist() == [1, 0, 1]
        assert batch.observations[:, 0].tolist() == [1, 1, 9]


@pytest.mark.parametrize("method", ["update_agent", "update_env"])
def test_update_that_changes_no_worker_is_refused(trio: rollserve.Sampler, method: str) -> None:
    trio.update_agent(constant(0))
    before = trio.status()
    with raises(rollserve.InvalidArgumentError, field="per_worker.updates", quotes="3 with nothing set"):
        getattr(trio, method)(per_worker=[None] * 3)
    after = trio.status()
    assert (after.policy_version, after.env_version) == (before.policy_version, before.env_version)


def test_kept_environment_with_other_spaces_is_refused(trio: rollserve.Sampler) -> None:
    trio.update_agent(constant(0))
    with raises(rollserve.InvalidArgumentError, field="per_worker.updates[1]", quotes="observation_space"):
        trio.update_env(per_worker=[EnvSpec("CartPole-v1", vectorization="rows"), None, None])
    assert sizes_and_tasks(trio) == [[1, 1]] * 3


@pytest.mark.parametrize("elements", [[None, constant(1)], [None, None, constant(1), None]])
def test_number_of_elements_counts_kept_workers(trio: rollserve.Sampler, elements: list[Any]) -> None:
    trio.update_agent(constant(0))
    with raises(rollserve.InvalidArgumentError, field="per_worker.updates", quotes=("3", str(len(elements)))):
        trio.update_agent(per_worker=elements)


def test_kept_agent_of_another_client_is_refused(trio: rollserve.Sampler, three_workers: LocalServer) -> None:
    trio.update_agent(constant(0))
    with rollserve.connect(three_workers.address) as other:
        other.update_agent(constant(1))
    with raises(rollserve.PreconditionError, reason=Reason.UNEXPECTED_VERSION):
        trio.update_agent(per_worker=[None, constant(0), constant(0)])
