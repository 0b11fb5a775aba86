"""Updates of single rows, whose environments may differ; each episode belongs to one row."""

from __future__ import annotations

import grpc
import numpy as np
import pytest
from pools import adds_up
from support import raises

import rollserve
from rollserve import EnvChange, EnvSpec, Reason, Reproducibility, Task
from rollserve_server.local import LocalServer
from rollserve_wire.v1 import environment_pb2
from rollserve_wire.v1 import sampler_service_pb2 as pb
from rollserve_wire.v1.sampler_service_pb2_grpc import SamplerServiceStub

TASKS = "sample_envs:Tasks"
NUM_WORKERS, NUM_ROWS = 2, 4
NUM_ALL_ROWS = NUM_WORKERS * NUM_ROWS


def sized(*sizes: int) -> list[EnvSpec]:
    return [EnvSpec(TASKS, {"size": size}) for size in sizes]


def goal(number: int) -> EnvChange:
    return EnvChange(task=Task("set_task", {"goal": number}))


@pytest.fixture
def rows(sampler: rollserve.Sampler) -> rollserve.Sampler:
    """A sampler with two workers of four rows each, whose sizes are 10 to 13 and 20 to 23."""
    sampler.update_env(per_worker=[sized(10, 11, 12, 13), sized(20, 21, 22, 23)])
    sampler.update_agent(rollserve.RandomAgent())
    return sampler


def seen(sampler: rollserve.Sampler) -> list[list[float]]:
    """Return size, task and start of each row, worker by worker, as their observations show them."""
    batch = sampler.obtain_exact_episodes(3 * NUM_ROWS, seed=1)
    observations = batch.observations.reshape(NUM_WORKERS, 3, NUM_ROWS, 3)
    assert (observations == observations[:, :1]).all()
    return observations[:, 0].reshape(NUM_ALL_ROWS, 3).tolist()


def seen_sizes(sampler: rollserve.Sampler) -> list[float]:
    return [size for size, _, _ in seen(sampler)]


def numbers(sampler: rollserve.Sampler) -> list[int]:
    """Return the number of each row's environment among all that its worker has made."""
    return sampler.obtain_exact_episodes(NUM_ROWS, seed=1).episode_infos["number"].tolist()


@pytest.mark.parametrize("first", [0, 3, 7, 2**40 + 5])
def test_episode_belongs_to_a_row(rows: rollserve.Sampler, first: int) -> None:
    batch = rows.obtain_samples(50, seed=1, first_episode_index=first)
    indices = first + np.arange(50)
    assert batch.episode_indices.tolist() == indices.tolist()
    assert batch.worker_indices is not None
    assert batch.worker_indices.tolist() == (indices // 4 % 2).tolist()
    assert batch.observations[:, 0].tolist() == (10 * (1 + indices // 4 % 2) + indices % 4).tolist()


@pytest.mark.parametrize("first", [0, 5])
def test_exact_episode_belongs_to_a_row(rows: rollserve.Sampler, first: int) -> None:
    batch = rows.obtain_exact_episodes(6, seed=1, first_episode_index=first)
    indices = first + np.arange(12)
    assert batch.episode_indices.tolist() == indices.tolist()
    assert batch.observations[:, 0].tolist() == (10 * (1 + np.arange(12) // 6) + indices % 4).tolist()


def test_rows_may_differ_beside_agents_of_each_worker(rows: rollserve.Sampler) -> None:
    rows.update_agent(per_worker=[rollserve.ConstantAgent(np.int64(action)) for action in (0, 1)])
    batch = rows.obtain_samples(20, seed=1)
    assert batch.actions.tolist() == [index // 4 % 2 for index in range(20)]
    rows.update_env(TASKS)
    batch = rows.obtain_samples(20, seed=1)
    assert batch.actions.tolist() == [index % 2 for index in range(20)]


def test_fragments_belong_to_their_rows(rows: rollserve.Sampler) -> None:
    sizes = np.array([10, 11, 12, 13, 20, 21, 22, 23])
    for _ in range(2):
        batch = rows.obtain_fragments(3 * NUM_ALL_ROWS)
        assert batch.observations[:, 0].tolist() == sizes[batch.episode_indices % NUM_ALL_ROWS].tolist()
    rows.update_env([None, goal(3), None, None])
    batch = rows.obtain_fragments(3 * NUM_ALL_ROWS)
    assert batch.observations[:, 1].tolist() == np.where(batch.episode_indices % NUM_ROWS == 1, 3, 0).tolist()


def test_calls_continue_the_sequence(rows: rollserve.Sampler) -> None:
    batches = [rows.obtain_samples(num_steps) for num_steps in (1, 2, 13, 30)]
    indices = np.concatenate([batch.episode_indices for batch in batches])
    assert (indices - indices[0]).tolist() == list(range(46))
    sizes = np.concatenate([batch.observations[:, 0] for batch in batches])
    assert sizes.tolist() == (10 * (1 + indices // 4 % 2) + indices % 4).tolist()
    for batch in batches:
        assert adds_up(batch.account)


def test_update_of_rows_applies_to_all_workers(rows: rollserve.Sampler) -> None:
    rows.update_env(sized(1, 2, 3, 4))
    assert seen_sizes(rows) == [1, 2, 3, 4] * 2
    rows.update_env([None, EnvChange(kwargs={"size": 7}), *sized(8), None])
    assert seen_sizes(rows) == [1, 7, 8, 4] * 2


def test_rows_without_an_update_keep_their_environments(rows: rollserve.Sampler) -> None:
    before = numbers(rows)
    version = rows.status().env_version
    updated = rows.update_env(per_worker=[[None, *sized(5), None, None], [None, None, None, goal(3)]])
    assert updated.env_version == version + 1
    assert seen(rows) == [
        *([10, 0, 0], [5, 0, 0], [12, 0, 0], [13, 0, 0]),
        *([20, 0, 0], [21, 0, 0], [22, 0, 0], [23, 3, 0]),
    ]
    assert [now == then for now, then in zip(numbers(rows), before, strict=True)] == [True, False] + [True] * 6


def test_task_of_one_row_is_set_without_a_new_environment(rows: rollserve.Sampler) -> None:
    before = numbers(rows)
    for number in (5, 6):
        rows.update_env([None, None, goal(number), None])
        assert [task for _, task, _ in seen(rows)] == [0, 0, number, 0] * 2
        assert numbers(rows) == before
    rows.update_env([EnvChange(reset_options={"start": 9}), None, None, None])
    assert [start for _, _, start in seen(rows)] == [9, 0, 0, 0] * 2
    assert numbers(rows) == before
    rows.update_env([None, None, *sized(12), None])
    assert [task for _, task, _ in seen(rows)] == [0] * 8, "the task went with the old environment"


def test_workers_may_mix_updates_of_rows_and_whole_ones(rows: rollserve.Sampler) -> None:
    rows.update_env(per_worker=[EnvSpec(TASKS, {"size": 2}), [None, goal(1), None, None]])
    assert seen_sizes(rows) == [2, 2, 2, 2, 20, 21, 22, 23]
    rows.update_env(per_worker=[[None, None, None, goal(4)], EnvChange(kwargs={"size": 3})])
    assert seen(rows) == [*([2, 0, 0], [2, 0, 0], [2, 0, 0], [2, 4, 0]), *([3, 0, 0], [3, 1, 0], [3, 0, 0], [3, 0, 0])]


def test_rows_can_be_the_same_again(rows: rollserve.Sampler) -> None:
    rows.update_env(EnvChange(reset_options={"start": 2}))
    assert seen(rows) == [[size, 0, 2] for size in (10, 11, 12, 13, 20, 21, 22, 23)]
    rows.update_env(TASKS)
    assert seen(rows) == [[1, 0, 0]] * 8
    assert rows.obtain_samples(1).worker_indices is None
    rows.update_env([None, *sized(2), None, None])
    assert seen_sizes(rows) == [1, 2, 1, 1] * 2


def test_earlier_version_keeps_its_rows(rows: rollserve.Sampler) -> None:
    versions = [rows.status().env_version]
    versions += [rows.update_env([None, None, None, goal(number)]).env_version for number in (1, 2)]
    for number, version in zip((0, 1, 2, 0), (*versions, versions[0]), strict=True):
        batch = rows.obtain_samples(NUM_ALL_ROWS, seed=1, env_version=version)
        assert batch.observations[:, 1].tolist() == [0, 0, 0, number] * 2


def test_status_names_the_environment_of_each_row(rows: rollserve.Sampler) -> None:
    assert rows.status().envs == tuple(sized(10, 11, 12, 13, 20, 21, 22, 23))
    rows.update_env(per_worker=[EnvSpec(TASKS), sized(1, 2, 3, 4)])
    assert rows.status().envs == (*[EnvSpec(TASKS)] * 4, *sized(1, 2, 3, 4))
    rows.update_env(per_worker=sized(1, 2))
    assert rows.status().envs == tuple(sized(1, 2))


REFUSED: dict[str, tuple[object, Reason, str, tuple[str, ...]]] = {
    "too few": ([None] * 3, Reason.INVALID_VALUE, "", ("3", "4")),
    "too many": (sized(*range(5)), Reason.INVALID_VALUE, "", ("5", "4")),
    "none": ([], Reason.INVALID_VALUE, "", ("0", "4")),
    "unknown": (
        [goal(1), EnvSpec("Nope-v0"), *sized(1, 2)],
        Reason.ENV_NOT_FOUND,
        "[1].environment.id",
        ("'Nope-v0'",),
    ),
    "arguments": (
        [None, None, EnvChange(kwargs={"nope": 1}), goal(2)],
        Reason.ENV_REFUSED,
        "[2].change.kwargs_json",
        (TASKS, "'nope'"),
    ),
    "task": (
        [goal(1), None, goal(-1), None],
        Reason.ENV_REFUSED,
        "[2].change.task.argument_json",
        ("set_task", "ValueError"),
    ),
    "method": (
        [None, EnvChange(task=Task("close", None)), None, None],
        Reason.METHOD_NOT_ALLOWED,
        "[1].change.task.method",
        ("'close'",),
    ),
    "module": (
        [None, None, None, EnvSpec("os:Nope")],
        Reason.MODULE_NOT_ALLOWED,
        "[3].environment.id",
        ("'os'",),
    ),
    "path": (
        [None, None, EnvSpec(TASKS, {"size": "/etc/passwd"}), None],
        Reason.PATH_NOT_ALLOWED,
        "[2].environment.kwargs_json",
        ("'/etc/passwd'",),
    ),
    "spaces": (
        [goal(1), None, EnvSpec("CartPole-v1"), None],
        Reason.INVALID_VALUE,
        "[2].environment",
        ("observation_space", "Box("),
    ),
    "spaces of new ones": (
        [*sized(1, 2), EnvSpec("CartPole-v1"), *sized(4)],
        Reason.INVALID_VALUE,
        "[2].environment",
        ("observation_space", "Box("),
    ),
}
"""Updates of rows, the reason, the field below `per_row.updates` at fault, and what the message has to quote."""


@pytest.mark.parametrize(("update", "reason", "field", "quotes"), REFUSED.values(), ids=REFUSED)
def test_invalid_row_changes_no_row(
    rows: rollserve.Sampler, update: list[EnvSpec], reason: Reason, field: str, quotes: tuple[str, ...]
) -> None:
    rows.update_env([None, goal(8), None, None])
    status, expected = rows.status(), rows.obtain_samples(40, seed=3)
    for where, arguments in (
        ("all_workers", {"env": update}),
        ("per_worker.updates[1]", {"per_worker": [[goal(5)] * 4, update]}),
    ):
        path = f"{where}.per_row.updates{field}"
        with raises(rollserve.InvalidArgumentError, field=path, reason=reason, quotes=quotes):
            rows.update_env(**arguments)  # type: ignore[arg-type]
        assert (rows.status().env_version, rows.status().envs) == (status.env_version, status.envs)
        batch = rows.obtain_samples(40, seed=3)
        assert (batch.observations == expected.observations).all()
        assert (batch.actions == expected.actions).all()


def test_spaces_that_differ_between_workers_are_rejected(rows: rollserve.Sampler) -> None:
    cartpoles = [EnvSpec("CartPole-v1", {"max_episode_steps": limit}) for limit in (1, 2, 3, 4)]
    with raises(rollserve.InvalidArgumentError, field="per_worker.updates[1]", quotes=("observation_space", "Box(")):
        rows.update_env(per_worker=[[None] * 4, cartpoles])
    rows.update_env(cartpoles)
    assert rows.obtain_samples(20, seed=1).lengths[:8].tolist() == [1, 2, 3, 4] * 2


@pytest.mark.parametrize(
    ("elements", "field"),
    [
        ([{}, {"per_row": {"updates": [{}] * 4}}, {}, {}], "per_row.updates[1].per_row"),
        ([{}, {}, {}, {"change": {"kwargs_json": "["}}], "per_row.updates[3].change.kwargs_json"),
    ],
    ids=["rows of a row", "no JSON"],
)
def test_malformed_row_update_is_rejected(
    rows: rollserve.Sampler, stub: SamplerServiceStub, elements: list[dict[str, object]], field: str
) -> None:
    version = rows.status().env_version
    per_row = environment_pb2.EnvironmentUpdatePerRow(
        updates=[environment_pb2.EnvironmentUpdate(**e) for e in elements]
    )
    update = environment_pb2.EnvironmentUpdate(per_row=per_row)
    empty = environment_pb2.EnvironmentUpdate()
    requests = {
        f"all_workers.{field}": pb.UpdateEnvRequest(all_workers=update),
        f"per_worker.updates[1].{field}": pb.UpdateEnvRequest(
            per_worker={"updates": [environment_pb2.EnvironmentUpdate(), update]}
        ),
        "per_worker.updates": pb.UpdateEnvRequest(per_worker={"updates": [empty, empty]}),
    }
    requests[f"per_worker.updates[1].{field}"].per_worker.updates[0].change.SetInParent()
    for path, request in requests.items():
        with raises(grpc.RpcError, field=path, reason=Reason.INVALID_VALUE) as caught:
            stub.UpdateEnv(request)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert rows.status().env_version == version


async def test_async_client_updates_rows(rows: rollserve.Sampler, server: LocalServer) -> None:
    async with rollserve.aconnect(server.address) as distant:
        await distant.update_env(per_worker=[[None] * 4, [*sized(1), None, None, goal(2)]])
        await distant.update_env([None, goal(4), None, None])
        batch = await distant.obtain_samples(NUM_ALL_ROWS, seed=1)
    expected = [*([10, 0], [11, 4], [12, 0], [13, 0]), *([1, 0], [21, 4], [22, 0], [23, 2])]
    assert batch.observations[:, :2].tolist() == expected


def test_row_update_replaces_native_vectorization(sampler: rollserve.Sampler) -> None:
    native = EnvSpec("CartPole-v1", num_rows=4, vectorization="native")
    sampler.update_env(native)
    sampler.update_agent(rollserve.RandomAgent())
    field = "all_workers.per_row.updates[2].environment.vectorization"
    with raises(rollserve.InvalidArgumentError, field=field, quotes="'native'"):
        sampler.update_env([None, None, native, None])
    assert sampler.status().reproducibility is Reproducibility.BLOCK
    updated = sampler.update_env([None, None, EnvChange(kwargs={"max_episode_steps": 1}), None])
    assert updated.reproducibility is Reproducibility.EPISODE
    batch = sampler.obtain_samples(100, seed=1)
    assert set(batch.lengths[batch.episode_indices % 4 == 2].tolist()) == {1}
