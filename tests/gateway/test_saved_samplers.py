"""Saved samplers: what is restored goes on as the saved sampler does, bit by bit; and files that are refused."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_models import agent_of, categorical
from support import equal, raises, server_environment

import rollserve
from rollserve import Reason
from rollserve_server.local import LocalServer, local_server
from rollserve_wire.tensors import tensor_to_proto
from rollserve_wire.v1 import saved_sampler_pb2 as pb

OPTIONS = (
    "--env",
    "CartPole-v1",
    "--vectorization",
    "rows",
    "--rows",
    "4",
    "--workers",
    "2",
    "--backend",
    "in-process",
)
OPTIONS += ("--allow-module", "sample_envs")


@pytest.fixture(scope="module")
def other_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """Another server with the settings of `thread_server`, and one worker."""
    log = tmp_path_factory.mktemp("other") / "server.log"
    with local_server(*OPTIONS, "--workers", "1", log=log, environment=server_environment()) as running:
        yield running


@pytest.fixture
def other(other_server: LocalServer) -> Iterator[rollserve.Sampler]:
    """The sampler of the other server, as it was at its start."""
    other_server.reset()
    with rollserve.connect(other_server.address) as connected:
        yield connected


def mlp(sampler: rollserve.Sampler, **options: Any) -> rollserve.MlpAgent:
    status = sampler.status()
    return rollserve.MlpAgent.initial(status.observation_space, status.action_space, **options)


def go_on(sampler: rollserve.Sampler) -> list[rollserve.EpisodeBatch]:
    """Return the next results of calls of all kinds, with and without seeds."""
    calls: list[Callable[[], rollserve.EpisodeBatch]] = [
        lambda: sampler.obtain_samples(150),
        lambda: sampler.obtain_fragments(8 * 7, return_last_states=True),
        lambda: sampler.obtain_exact_episodes(1, seed=3),
        lambda: sampler.obtain_fragments(8 * 9, seed=11, row_step_count=5, return_discount=0.9),
        lambda: sampler.obtain_samples(50),
        lambda: sampler.obtain_fragments(8 * 30),
    ]
    return [call() for call in calls]


def go_on_anew(sampler: rollserve.Sampler) -> list[rollserve.EpisodeBatch]:
    """Return the next results of calls in sequences that have lost their environment."""
    return [sampler.obtain_samples(150), sampler.obtain_fragments(8 * 7), sampler.obtain_fragments(8 * 3, seed=11)]


def use(sampler: rollserve.Sampler) -> None:
    """Make calls whose sequences others go on with."""
    sampler.obtain_samples(200)
    sampler.obtain_fragments(8 * 21)
    sampler.obtain_fragments(8 * 5, seed=11, return_discount=0.9)


AGENTS: dict[str, Callable[[rollserve.Sampler], rollserve.Agent]] = {
    "mlp": lambda sampler: mlp(sampler, value="separate", layer_norm=True),
    "recurrent": lambda sampler: mlp(sampler, core="gru", previous_action=True, previous_reward=True),
    "epsilon": lambda sampler: dataclasses.replace(mlp(sampler, head="epsilon_greedy"), epsilon=0.25),
    "random": lambda _: rollserve.RandomAgent(),
    "constant": lambda _: rollserve.ConstantAgent(1),
    "onnx": lambda _: agent_of(categorical()),
    "python": lambda _: rollserve.PythonAgent("matrix", parameters={"first": np.eye(4), "second": np.ones((4, 2))}),
}


@pytest.mark.parametrize("kind", AGENTS)
def test_restored_sampler_goes_on_with_the_same_bits(
    thread_sampler: rollserve.Sampler, other: rollserve.Sampler, kind: str
) -> None:
    for _ in range(2):
        thread_sampler.update_agent(AGENTS[kind](thread_sampler))
    use(thread_sampler)
    saved = thread_sampler.save()
    other.restore(saved)
    before, after = thread_sampler.status(), other.status()
    assert (after.policy_version, after.env_version, after.num_workers) == (2, 1, 2)
    assert after.counters.num_steps == before.counters.num_steps > 0
    for expected, batch in zip(go_on(thread_sampler), go_on(other), strict=True):
        assert equal(batch, expected)
    versions = [[agent.content_hash for agent in each.agents] for each in thread_sampler.agent_versions()]
    assert [[agent.content_hash for agent in each.agents] for each in other.agent_versions()] == versions
    assert other.update_agent(AGENTS[kind](other)) == 3


def test_versions_of_environments_and_of_workers_are_restored(
    thread_sampler: rollserve.Sampler, other: rollserve.Sampler
) -> None:
    agent = mlp(thread_sampler)
    thread_sampler.update_agent(agent)
    old = thread_sampler.obtain_samples(100, seed=5)
    wrapped = rollserve.EnvSpec("CartPole-v1", wrappers=[rollserve.Wrapper("TimeAwareObservation")])
    thread_sampler.update_env(wrapped)
    agents = [mlp(thread_sampler, seed=seed) for seed in range(2)]
    thread_sampler.update_agent(per_worker=agents)
    use(thread_sampler)
    other.restore(thread_sampler.save())
    assert equal(other.obtain_samples(100, seed=5, policy_version=1, env_version=1), old)
    for expected, batch in zip(go_on(thread_sampler), go_on(other), strict=True):
        assert equal(batch, expected)
    assert other.update_env("CartPole-v1").env_version == 3


def test_environments_of_rows_are_restored(thread_sampler: rollserve.Sampler, other: rollserve.Sampler) -> None:
    rows = [rollserve.EnvSpec("sample_envs:Ends", {"length": length}) for length in (3, 5, 7, 9)]
    thread_sampler.update_env(rows)
    thread_sampler.update_agent(rollserve.RandomAgent())
    use(thread_sampler)
    other.restore(thread_sampler.save())
    for expected, batch in zip(go_on(thread_sampler), go_on(other), strict=True):
        assert equal(batch, expected)


def test_native_rows_are_restored(thread_sampler: rollserve.Sampler, other: rollserve.Sampler) -> None:
    thread_sampler.update_env(rollserve.EnvSpec("CartPole-v1", vectorization="native", num_rows=8))
    thread_sampler.update_agent(mlp(thread_sampler))
    thread_sampler.obtain_samples(300)
    thread_sampler.obtain_fragments(16 * 20, return_discount=0.9)
    other.restore(thread_sampler.save())
    assert equal(other.obtain_samples(300), thread_sampler.obtain_samples(300))
    expected, batch = (each.obtain_fragments(16 * 20, return_discount=0.9) for each in (thread_sampler, other))
    assert equal(batch, expected)
    assert expected.discounted_returns_before is not None
    assert expected.discounted_returns_before.any()
    assert batch.account.return_moments == expected.account.return_moments is not None


def test_sampler_is_saved_while_calls_run(thread_sampler: rollserve.Sampler, other: rollserve.Sampler) -> None:
    thread_sampler.update_agent(mlp(thread_sampler))
    use(thread_sampler)
    with thread_sampler.stream_samples(3000) as samples, thread_sampler.stream_fragments(8 * 400) as fragments:
        next(samples), next(fragments)
        saved = thread_sampler.save()
    other.restore(saved)
    thread_sampler.restore(saved)
    assert equal(other.obtain_samples(3000), thread_sampler.obtain_samples(3000))
    assert equal(other.obtain_fragments(8 * 400), thread_sampler.obtain_fragments(8 * 400))


def test_calls_of_the_run_before_fail(thread_sampler: rollserve.Sampler, thread_server: LocalServer) -> None:
    thread_sampler.update_agent(mlp(thread_sampler))
    saved = thread_sampler.save()
    with rollserve.connect(thread_server.address, shared=True) as another:
        stream = another.stream(fragment_length=16, max_policy_lag=0)
        next(stream)
        thread_sampler.restore(saved)
        with raises(rollserve.PreconditionError, reason=Reason.SAMPLER_RUN, match="the sampler was restored"):
            list(stream)
        another.obtain_samples(10)
    thread_sampler.obtain_samples(10)


def test_clients_of_the_run_before_are_told_of_the_new_one(
    thread_sampler: rollserve.Sampler, thread_server: LocalServer
) -> None:
    thread_sampler.update_env("CartPole-v1")
    thread_sampler.update_agent(mlp(thread_sampler))
    saved = thread_sampler.save()
    with rollserve.connect(thread_server.address) as another:
        another.restore(saved)
        with raises(rollserve.PreconditionError, reason=Reason.SAMPLER_RUN):
            thread_sampler.obtain_samples(10)
        another.obtain_samples(10)
        another.update_agent(mlp(another, seed=1))
        with raises(rollserve.PreconditionError, reason=Reason.UNEXPECTED_VERSION):
            thread_sampler.obtain_samples(10)


@pytest.mark.parametrize("current", [False, True], ids=["older", "current"])
def test_agents_without_an_environment_are_left_out(
    thread_sampler: rollserve.Sampler, other: rollserve.Sampler, other_server: LocalServer, current: bool
) -> None:
    thread_sampler.update_agent(mlp(thread_sampler))
    for number in range(5):  # until the first environment is not kept any more
        thread_sampler.update_env(rollserve.EnvSpec("Acrobot-v1", {"max_episode_steps": 20 + number}))
    if not current:
        thread_sampler.update_agent(mlp(thread_sampler))
    other.restore(thread_sampler.save())
    version = 1 if current else 2
    assert other.status().policy_version == thread_sampler.status().policy_version == version
    with rollserve.connect(other_server.address, shared=True) as shared:
        if current:
            with raises(rollserve.PreconditionError, reason=Reason.NO_AGENT):
                shared.obtain_samples(10)
        else:
            assert equal(shared.obtain_samples(60), thread_sampler.obtain_samples(60))
        assert shared.update_agent(mlp(shared, seed=1)) == version + 1


def test_rows_without_an_environment_are_left_out(thread_sampler: rollserve.Sampler, other: rollserve.Sampler) -> None:
    thread_sampler.update_agent(rollserve.RandomAgent())
    use(thread_sampler)
    for number in range(4):  # until the first environment is not kept any more
        thread_sampler.update_env("CartPole-v1", kwargs={"max_episode_steps": 20 + number})
    saved = thread_sampler.save()
    assert not any(record.HasField("rows") for record in records(saved))
    other.restore(saved)
    for expected, batch in zip(go_on_anew(thread_sampler), go_on_anew(other), strict=True):
        assert equal(batch, expected)


def test_rows_without_an_environment_of_an_older_file_are_left_out(
    thread_sampler: rollserve.Sampler, other: rollserve.Sampler
) -> None:
    thread_sampler.update_agent(rollserve.RandomAgent())
    use(thread_sampler)
    rows = [record for record in records(thread_sampler.save()) if record.HasField("rows")]
    for number in range(4):
        thread_sampler.update_env("CartPole-v1", kwargs={"max_episode_steps": 20 + number})
    other.restore(file_of(records(thread_sampler.save())[:-1] + rows))
    for expected, batch in zip(go_on_anew(thread_sampler), go_on_anew(other), strict=True):
        assert equal(batch, expected)


def test_old_versions_of_each_worker_are_left_out_when_the_number_of_workers_changes(
    thread_sampler: rollserve.Sampler, other: rollserve.Sampler
) -> None:
    limits = [{"max_episode_steps": number} for number in (20, 30)]
    thread_sampler.update_env(per_worker=[rollserve.EnvSpec("CartPole-v1", each) for each in limits])
    thread_sampler.update_agent(per_worker=[mlp(thread_sampler, seed=seed) for seed in range(2)])
    thread_sampler.update_env("CartPole-v1")
    thread_sampler.update_agent(mlp(thread_sampler))
    thread_sampler.resize(3)
    other.restore(thread_sampler.save())
    status = other.status()
    assert (status.policy_version, status.env_version, status.num_workers) == (2, 3, 3)
    assert equal(other.obtain_samples(100), thread_sampler.obtain_samples(100))


def test_server_that_keeps_fewer_versions_leaves_out_the_older_ones(
    thread_sampler: rollserve.Sampler, tmp_path: Path
) -> None:
    thread_sampler.update_agent(mlp(thread_sampler))
    use(thread_sampler)
    thread_sampler.update_env("Acrobot-v1")
    thread_sampler.update_agent(mlp(thread_sampler))
    running = local_server(
        *OPTIONS, "--keep-versions", "1", log=tmp_path / "server.log", environment=server_environment()
    )
    with running as server, rollserve.connect(server.address) as sampler:
        sampler.restore(thread_sampler.save())
        assert equal(sampler.obtain_samples(60), thread_sampler.obtain_samples(60))


def test_async_sampler_saves_and_restores(thread_sampler: rollserve.Sampler, other_server: LocalServer) -> None:
    thread_sampler.update_agent(mlp(thread_sampler))
    use(thread_sampler)

    async def scenario(saved: bytes) -> tuple[bytes, rollserve.EpisodeBatch]:
        async with rollserve.aconnect(other_server.address) as sampler:
            await sampler.restore(saved)
            return await sampler.save(), await sampler.obtain_samples(100)

    again, batch = asyncio.run(scenario(thread_sampler.save()))
    assert equal(batch, thread_sampler.obtain_samples(100))
    assert len(again) > 1000


def test_file_is_restored_by_its_path(thread_sampler: rollserve.Sampler, tmp_path: Path) -> None:
    thread_sampler.update_agent(rollserve.RandomAgent())
    path = tmp_path / "sampler.saved"
    path.write_bytes(thread_sampler.save())
    expected = thread_sampler.obtain_samples(50)
    thread_sampler.restore(path)
    assert equal(thread_sampler.obtain_samples(50), expected)
    with pytest.raises(TypeError, match="saved: expected the bytes of a saved sampler, or a path"):
        thread_sampler.restore(3)  # type: ignore[arg-type]


def records(saved: bytes) -> list[pb.SavedRecord]:
    """Return the records of a file."""
    found, place = [], 16
    while place < len(saved):
        stop = place + 8 + int.from_bytes(saved[place : place + 8], "little")
        found.append(pb.SavedRecord.FromString(saved[place + 8 : stop]))
        place = stop
    return found


def file_of(parts: list[pb.SavedRecord]) -> bytes:
    """Return a file with these records and an end."""
    data = b"rollserve saved\n"
    for record in parts:
        content = record.SerializeToString()
        data += len(content).to_bytes(8, "little") + content
    end = pb.SavedRecord(end=pb.SavedEnd(sha256=hashlib.sha256(data).digest())).SerializeToString()
    return data + len(end).to_bytes(8, "little") + end


def part(parts: list[pb.SavedRecord], name: str) -> Any:
    return next(getattr(record, name) for record in parts if record.HasField(name))


def cut_header(parts: list[pb.SavedRecord]) -> None:
    parts[:] = [record for record in parts if not record.HasField("header")]


def repeat_version(parts: list[pb.SavedRecord]) -> None:
    parts.append(next(record for record in parts if record.HasField("agents")))


def widen_actions(parts: list[pb.SavedRecord]) -> None:
    rows = part(parts, "rows").rows
    rows[0].CopyFrom(next(row for row in rows if row.actions))  # a row between two episodes has none
    rows[0].actions[0].shape[0] += 1
    rows[0].actions[0].data += bytes(len(rows[0].actions[0].data) // (rows[0].actions[0].shape[0] - 1))


def test_file_is_read_without_what_only_a_journal_has(thread_sampler: rollserve.Sampler) -> None:
    thread_sampler.update_agent(mlp(thread_sampler))
    use(thread_sampler)
    parts = records(thread_sampler.save())[:-1]
    rows = part(parts, "rows")
    rows.previous_rows.add(step_count=-1)
    rows.number = -1
    part(parts, "agents").client_ids.append("another")
    part(parts, "agents").spaces.agents.append("another")
    thread_sampler.restore(file_of(parts))
    assert thread_sampler.status().policy_version == 1
    use(thread_sampler)


# Files that are refused, and change nothing.


CHANGES: dict[str, tuple[Callable[[list[pb.SavedRecord]], None], str]] = {
    "newer format": (lambda parts: setattr(part(parts, "header"), "format", 2), "data.header.format"),
    "no header": (cut_header, "data.header"),
    "no worker": (lambda parts: setattr(part(parts, "header"), "worker_count", 0), "data.header.worker_count"),
    "no own sequence": (lambda parts: part(parts, "header").ClearField("own_sequences"), "data.header.own_sequences"),
    "a record that goes on with another": (lambda parts: setattr(parts[1], "goes_on", True), "data.goes_on"),
    "version twice": (repeat_version, "data.agents"),
    "no environment": (lambda parts: part(parts, "environments").ClearField("workers"), "data.environments[1].workers"),
    "bad agent": (
        lambda parts: setattr(part(parts, "agents").agents[0].mlp, "activation", 99),
        "data.agents[1].agents[0].mlp.activation",
    ),
    "an agent of the end of time": (
        lambda parts: part(parts, "agents").updated.FromNanoseconds(253_402_300_799_999_999_999),
        "data.agents[1].updated.seconds",
    ),
    "a time that is none": (lambda parts: setattr(part(parts, "header").saved, "nanos", -1), "data.header.saved.nanos"),
    "pickle": (
        lambda parts: setattr(part(parts, "agents").agents[0].pickled, "data", b"x"),
        "data.agents[1].agents[0]",
    ),
    "another agent": (
        lambda parts: part(parts, "agents").agents[0].mlp.layer_sizes.insert(0, 3),
        "agents[1].layer_sizes[0]",
    ),
    "unknown environment": (
        lambda parts: setattr(part(parts, "rows"), "environment_version", 9),
        "rows[0].environment_version",
    ),
    "a discount": (
        lambda parts: setattr(part(parts, "rows"), "return_discount", 2.0),
        "data.rows[0].return_discount",
    ),
    "rows too few": (lambda parts: part(parts, "rows").rows.pop(), "data.rows[0].rows"),
    "actions too many": (widen_actions, "rows[0].rows[0].actions"),
    "state not finite": (
        lambda parts: (
            part(parts, "rows").rows[0].recurrent_state.add(name="h").tensor.CopyFrom(tensor_to_proto(np.array(np.nan)))
        ),
        "rows[0].rows[0].recurrent_state['h']",
    ),
    "negative steps": (
        lambda parts: setattr(part(parts, "rows").rows[0], "step_count", -1),
        "data.rows[0].rows[0].step_count",
    ),
    "two headers": (lambda parts: parts.append(parts[0]), "data.header"),
    "a version without a next one": (
        lambda parts: setattr(part(parts, "agents"), "policy_version", 2**63 - 1),
        "data.agents",
    ),
    "a current version below the highest": (
        lambda parts: setattr(part(parts, "agents"), "policy_version", 2),
        "data.header.policy_version",
    ),
    "an episode without a next one": (
        lambda parts: setattr(part(parts, "rows").rows[0], "episode_index", 2**63 - 1),
        "data.rows[0].rows[0].episode_index",
    ),
    "a negative counter": (
        lambda parts: part(parts, "header").counters.update(num_steps=-1),
        "data.header.counters['num_steps']",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_malformed_part_is_refused_by_its_field(thread_sampler: rollserve.Sampler, name: str) -> None:
    thread_sampler.update_agent(mlp(thread_sampler))
    use(thread_sampler)
    saved = thread_sampler.save()
    change, field = CHANGES[name]
    parts = records(saved)[:-1]
    change(parts)
    before = thread_sampler.status()
    with pytest.raises(rollserve.InvalidArgumentError) as failure:
        thread_sampler.restore(file_of(parts))
    assert failure.value.field == field
    after = thread_sampler.status()
    assert (after.policy_version, after.env_version, after.seed) == (1, 1, before.seed)
    other = file_of(records(saved)[:-1])
    thread_sampler.restore(other)


@pytest.mark.parametrize("size", [0, 10, 20, 300, -40, -1])
def test_incomplete_file_is_refused(thread_sampler: rollserve.Sampler, size: int) -> None:
    saved = thread_sampler.save()
    with pytest.raises(rollserve.InvalidArgumentError, match="data: expected"):
        thread_sampler.restore(saved[:size])


def test_changed_file_is_refused(thread_sampler: rollserve.Sampler) -> None:
    saved = thread_sampler.save()
    for position in (17, 30, 40, saved.index(b"CartPole"), len(saved) - 40, len(saved) - 1):
        changed = bytearray(saved)
        changed[position] ^= 4
        with pytest.raises(rollserve.InvalidArgumentError, match="got a file that was changed or cut off"):
            thread_sampler.restore(bytes(changed))
    with pytest.raises(rollserve.InvalidArgumentError, match="got a file that was changed or cut off"):
        thread_sampler.restore(saved + b"more")


def test_server_with_other_rows_refuses(thread_sampler: rollserve.Sampler, tmp_path: Path) -> None:
    saved = thread_sampler.save()
    options = (*OPTIONS[:4], "--rows", "3", *OPTIONS[6:])
    running = local_server(*options, log=tmp_path / "log", environment=server_environment())
    with running as server, rollserve.connect(server.address) as sampler:
        with raises(rollserve.PreconditionError, reason=Reason.SAVED_SAMPLER, match="row_count: expected 4, got 3"):
            sampler.restore(saved)
        assert sampler.status().num_workers == 2
