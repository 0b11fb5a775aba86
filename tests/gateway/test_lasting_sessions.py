"""Sessions whose rows do not wait for each other, and sessions that outlive the streams of their clients."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import time
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from cutting_proxy import cutting_proxy
from principals import Tokens
from support import equal, raises

import rollserve
from rollserve_server.local import LocalServer, local_server
from rollserve_wire.tensors import named_tensors_to_proto
from rollserve_wire.v1 import sampler_service_pb2 as pb
from rollserve_wire.v1.sampler_service_pb2_grpc import SamplerServiceStub

NUM_STEPS = 40
Shown = dict[tuple[int, int], tuple[Any, ...]]


@pytest.fixture(scope="module")
def server(light_server: LocalServer) -> LocalServer:
    return light_server


def actions_of(rows: np.ndarray, row_steps: np.ndarray) -> np.ndarray:
    """An action for each row, a function of the row and of the number of its step."""
    return (rows * 7 + row_steps * 3 + row_steps // 5) % 2


def shown_of(step: rollserve.DrivenStep) -> Shown:
    """What a step shows of each row, by row and number of its step."""
    return {
        (int(row), int(number)): (
            step.observations[position].tobytes(),
            float(step.rewards[position]),
            bool(step.terminated[position]),
            bool(step.truncated[position]),
            int(step.episode_indices[position]),
            step.last_observations[step.ended_rows == position].tobytes(),
        )
        for position, (row, number) in enumerate(zip(step.rows, step.row_steps, strict=True))
    }


def without_spaces(batch: rollserve.EpisodeBatch) -> rollserve.EpisodeBatch:
    return dataclasses.replace(batch, observation_space=None, action_space=None)


def driven_together(
    sampler: rollserve.Sampler[Any], version_steps: int = NUM_STEPS, **options: Any
) -> tuple[Shown, rollserve.EpisodeBatch]:
    with sampler.drive(seed=5, **options) as session:
        step = session.observe()
        shown = shown_of(step)
        for number in range(NUM_STEPS):
            session.policy_version = number // version_steps
            step = session.step(actions_of(step.rows, step.row_steps))
            shown |= shown_of(step)
        return shown, without_spaces(session.batch())


def driven_apart(
    sampler: rollserve.Sampler[Any], min_ready: int, kill_at: int | None = None, **options: Any
) -> tuple[Shown, rollserve.EpisodeBatch, rollserve.Account]:
    with sampler.drive(seed=5, min_ready=min_ready, **options) as session:
        step, number = session.recv(), 0
        shown = shown_of(step)
        while sum(steps == NUM_STEPS for _, steps in shown) < session.num_rows:
            if number == kill_at:
                os.kill(sampler.status().workers[0].process_id, signal.SIGKILL)
            act = step.row_steps < NUM_STEPS
            if act.any():
                session.send(actions_of(step.rows[act], step.row_steps[act]), step.rows[act])
            step, number = session.recv(), number + 1
            shown |= shown_of(step)
        batch = session.batch()
    return shown, without_spaces(batch), session.account


@pytest.mark.parametrize("min_ready", [1, 4, 8])
@pytest.mark.parametrize("vectorization", ["rows", "native"])
def test_rows_that_do_not_wait_make_the_same_steps(
    sampler: rollserve.Sampler[Any], min_ready: int, vectorization: Any
) -> None:
    sampler.update_env(rollserve.EnvSpec("CartPole-v1", vectorization=vectorization, num_rows=4))
    shown, batch = driven_together(sampler, fragment_length=16)
    apart, its_batch, account = driven_apart(sampler, min_ready, fragment_length=16)
    assert apart == shown
    assert equal(its_batch, batch)
    assert account.num_steps == account.num_simulated_steps == 8 * NUM_STEPS


@pytest.mark.parametrize("kill", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_rows_that_do_not_wait_have_the_versions_of_their_actions(ray_server: LocalServer, *, kill: bool) -> None:
    kinds: dict[tuple[int, int], int] = {}
    with rollserve.connect(ray_server.address) as sampler:
        sampler.update_env("CartPole-v1")
        with sampler.drive(seed=5, min_ready=4, fragment_length=16) as session:
            for number in range(60):
                step = session.recv()
                session.policy_version = number // 7
                kinds |= dict.fromkeys(zip(step.rows.tolist(), step.row_steps.tolist(), strict=True), number // 7)
                if kill and number == 20:
                    os.kill(sampler.status().workers[0].process_id, signal.SIGKILL)
                session.send(actions_of(step.rows, step.row_steps), step.rows)
            batch = session.batch()
    # An episode's index says its row, and its segments are in order: the row's steps are those of its segments.
    found: dict[tuple[int, int], int] = {}
    made = dict.fromkeys(range(8), 0)
    for index in np.lexsort((batch.first_steps, batch.episode_indices)).tolist():
        row, length = int(batch.episode_indices[index]) % 8, int(batch.lengths[index])
        found |= dict.fromkeys(((row, made[row] + each) for each in range(length)), int(batch.policy_versions[index]))
        made[row] += length
    assert found == kinds
    assert set(kinds.values()) == set(range(9))


@pytest.mark.slow
def test_worker_that_is_killed_while_rows_do_not_wait(ray_server: LocalServer) -> None:
    with rollserve.connect(ray_server.address) as sampler:
        sampler.update_env("CartPole-v1")
        shown, batch = driven_together(sampler, fragment_length=16)
        apart, its_batch, account = driven_apart(sampler, 4, kill_at=30, fragment_length=16)
    assert apart == shown
    assert equal(its_batch, batch)
    assert account.num_simulated_steps == account.num_steps + account.num_lost_steps


def test_fragments_end_where_each_row_is(thread_sampler: rollserve.Sampler[Any]) -> None:
    with thread_sampler.drive(seed=5, min_ready=4) as session:
        assert sum(len(session.recv().rows) for _ in range(2)) == 8
        for _ in range(3):
            session.send(np.zeros(4, np.int64), np.arange(4))
            assert session.recv().rows.tolist() == [0, 1, 2, 3]
        batch = session.batch()
        session.send(np.ones(4, np.int64), np.arange(4, 8))
        assert session.recv().rows.tolist() == [4, 5, 6, 7]
        rest = session.batch()
    assert batch.episode_indices.tolist() == [0, 1, 2, 3]
    assert batch.lengths.tolist() == [3] * 4
    assert rest.episode_indices.tolist() == [4, 5, 6, 7]
    assert session.account.num_steps == batch.num_steps + rest.num_steps == 16


def sent(server: LocalServer, **actions: Any) -> str:
    """The error for actions in a session whose four rows of each worker are stepped at once."""
    spec = pb.DriveSpec(fragment_length=8, min_ready_row_count=4)
    tensor = named_tensors_to_proto({"": np.zeros(len(actions["rows"]), np.int64)})
    with grpc.insecure_channel(server.address) as channel:
        requests = [pb.DriveEnvironmentsRequest(spec=spec)]
        given = pb.DrivenActions(actions=tensor, **actions)

        def all_requests() -> Any:
            yield requests[0]
            time.sleep(0.3)  # until rows are shown
            yield pb.DriveEnvironmentsRequest(actions=given)
            time.sleep(5)

        with pytest.raises(grpc.RpcError) as caught:
            for _ in SamplerServiceStub(channel).DriveEnvironments(all_requests()):
                pass
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    return str(caught.value.details())


@pytest.mark.parametrize(
    ("actions", "text"),
    [
        ({"rows": [0, 1, 2, 9], "row_step_counts": [0] * 4}, "actions.rows: expected numbers of different rows"),
        ({"rows": [0, 1, 2, 2], "row_step_counts": [0] * 4}, "actions.rows: expected numbers of different rows"),
        ({"rows": [0, 1, 2, 3], "row_step_counts": [0] * 3}, "actions.row_step_counts: expected 4 values"),
        ({"rows": [0, 1, 2, 3], "row_step_counts": [1] * 4}, "actions.row_step_counts[0]: expected 0"),
        ({"rows": [0, 1], "row_step_counts": [0] * 2}, "actions.rows: expected all or none of the rows from 0 to 3"),
    ],
)
def test_wrong_rows_are_refused(sampler: rollserve.Sampler[Any], server: LocalServer, actions: Any, text: str) -> None:
    sampler.update_env(rollserve.EnvSpec("CartPole-v1", vectorization="native", num_rows=4))
    assert text in sent(server, **actions)


def test_more_ready_rows_than_there_are(cartpole: rollserve.Sampler[Any]) -> None:
    with raises(rollserve.InvalidArgumentError, field="spec.min_ready_row_count"), cartpole.drive(min_ready=9) as one:
        one.observe()
    with raises(rollserve.InvalidArgumentError, field="step"), cartpole.drive(min_ready=8) as session:
        session.step(np.zeros(8, np.int64))


@pytest.mark.parametrize("lost_at", [0, 5, 20])
def test_another_client_takes_a_session_up(cartpole: rollserve.Sampler[Any], lost_at: int) -> None:
    shown, batch = driven_together(cartpole, fragment_length=16)
    session = cartpole.drive(seed=5, fragment_length=16, lease_seconds=30)
    session.policy_version = 3
    step = session.observe()
    again = shown_of(step)
    while step.number < lost_at:
        step = session.step(actions_of(step.rows, step.row_steps))
        again |= shown_of(step)
    session.close()
    with cartpole.resume_session(session.token) as other:
        assert other.observe().number == lost_at
        assert shown_of(other.observe()) == shown_of(step)
        while (step := other.observe()).number < NUM_STEPS:
            again |= shown_of(other.step(actions_of(step.rows, step.row_steps)))
        rest = other.batch()
    assert set(rest.policy_versions) == {3 if lost_at else 0}  # as the first client has sent it
    assert again == shown
    rest = dataclasses.replace(rest, policy_versions=np.zeros_like(rest.policy_versions))
    # Rounds that the first client has got are not sent again.
    assert equal(without_spaces(rest), batch) if lost_at < 16 else rest.num_steps == 8 * (NUM_STEPS - 16)
    assert other.account.num_steps == other.account.num_simulated_steps == 8 * NUM_STEPS


@pytest.mark.parametrize("min_ready", [None, 4])
def test_session_goes_on_after_its_connection_is_cut(
    cartpole: rollserve.Sampler[Any], server: LocalServer, min_ready: int | None
) -> None:
    shown, batch = driven_together(cartpole, NUM_STEPS if min_ready else 7, fragment_length=16)
    with (
        cutting_proxy(server.address, num_cuts=12, max_bytes=6000, seed=3) as proxy,
        rollserve.connect(proxy.address, timeout=20) as sampler,
    ):
        sampler.status()
        options: dict[str, Any] = {"fragment_length": 16, "lease_seconds": 30}
        if min_ready is None:
            again, its_batch = driven_together(sampler, 7, **options)
        else:
            again, its_batch, _ = driven_apart(sampler, min_ready, **options)
        assert proxy.num_cuts >= 4
    assert again == shown
    assert equal(its_batch, batch)


def test_account_is_kept_for_a_client_that_has_lost_it(cartpole: rollserve.Sampler[Any], server: LocalServer) -> None:
    session = cartpole.drive(seed=5, lease_seconds=30)
    session.step(np.zeros(8, np.int64))
    spec = pb.DriveEnvironmentsRequest(resumption=pb.DriveResumption(token=session.token))
    ending = pb.DriveEnvironmentsRequest(session_end=pb.SessionEnd())
    for _ in range(2):  # this client never says that the account has arrived
        with grpc.insecure_channel(server.address) as channel:
            call = SamplerServiceStub(channel).DriveEnvironments(iter([spec, ending]))
            kinds = [response.WhichOneof("content") for response in _up_to_account(call)]
            call.cancel()
        assert kinds[0] == "beginning"
        assert kinds[-2:] == ["round", "account"]
    with cartpole.resume_session(session.token) as other:
        other.end()
        assert other.batch().num_steps == 8
    with raises(rollserve.InvalidArgumentError, reason="SESSION_NOT_FOUND"):
        cartpole.resume_session(session.token).observe()


def _up_to_account(call: Any) -> Any:
    for response in call:
        yield response
        if response.WhichOneof("content") == "account":
            return


@pytest.mark.parametrize("agents", [(), ("player_1",)], ids=["all", "one"])
def test_session_with_many_agents_goes_on_after_its_connection_is_cut(
    thread_sampler: rollserve.Sampler[Any], thread_server: LocalServer, agents: tuple[str, ...]
) -> None:
    mask = rollserve.ActionMask(observation="action_mask")
    thread_sampler.update_env(rollserve.EnvSpec("classic/connect_four-v3", multi_agent="aec"))
    thread_sampler.update_agent(rollserve.Policies({"random": rollserve.RandomAgent(mask)}, {"*": "random"}))

    def driven(sampler: rollserve.Sampler[Any], **options: Any) -> tuple[list[Any], rollserve.MultiAgentBatch]:
        session: Any
        with sampler.multi_agent.drive(seed=3, agents=agents, fragment_length=16, **options) as session:
            step = session.observe()
            shown = []
            while step.number < NUM_STEPS:
                masks = {agent: turns.observations["action_mask"] for agent, turns in step.turns.items()}
                shown.append((step.number, {agent: mask.tobytes() for agent, mask in masks.items()}))
                step = session.step({agent: mask.argmax(axis=1) for agent, mask in masks.items()})
            return shown, session.batch()

    shown, batch = driven(thread_sampler)
    with (
        cutting_proxy(thread_server.address, num_cuts=12, max_bytes=9000, seed=3) as proxy,
        rollserve.connect(proxy.address, timeout=20) as sampler,
    ):
        sampler.status()
        again, its_batch = driven(sampler, lease_seconds=30)
        assert proxy.num_cuts >= 4
    assert again == shown
    assert its_batch.num_steps == batch.num_steps
    for name, part in batch.by_policy().items():
        assert equal(without_spaces(its_batch.by_policy()[name]), without_spaces(part))


def test_rounds_come_once_to_a_client_that_has_taken_a_session_up(
    cartpole: rollserve.Sampler[Any], server: LocalServer
) -> None:
    actions = np.zeros(8, np.int64)
    session = cartpole.drive(seed=5, fragment_length=4, lease_seconds=30)
    for _ in range(10):
        session.step(actions)
    session.close()
    with (
        cutting_proxy(server.address, num_cuts=0, max_bytes=1, seed=0) as proxy,
        rollserve.connect(proxy.address, timeout=20) as sampler,
        sampler.resume_session(session.token) as other,
    ):
        other.step(actions)
        batches = [other.batch()]  # perhaps with a round that the server does not know to have arrived
        proxy.cut()
        other.step(actions)
        batches.append(other.batch())
        other.end()
        with contextlib.suppress(rollserve.PreconditionError):
            batches.append(other.batch())
    steps = [
        (index, step)
        for batch in batches
        for index, first, length in zip(batch.episode_indices, batch.first_steps, batch.lengths, strict=True)
        for step in range(first, first + length)
    ]
    assert len(steps) == len(set(steps))
    assert len(steps) in (8 * 4, 8 * 8)


def test_session_with_a_lease_ends_before_its_first_step(cartpole: rollserve.Sampler[Any]) -> None:
    with cartpole.drive(lease_seconds=30) as session:
        pass
    assert session.account.num_steps == 0


def test_session_belongs_to_its_last_stream(cartpole: rollserve.Sampler[Any]) -> None:
    with cartpole.drive(lease_seconds=30) as session:
        session.observe()
        with cartpole.resume_session(session.token) as other:
            assert other.step(np.zeros(8, np.int64)).number == 1
            with raises(rollserve.PreconditionError, reason="SESSION_TAKEN"):
                session.step(np.zeros(8, np.int64))
        session.close()


def test_session_ends_with_its_lease(tmp_path: Path) -> None:
    options = "--env", "CartPole-v1", "--backend", "in-process", "--max-calls", "1"
    with local_server(*options, log=tmp_path / "server.log") as running, rollserve.connect(running.address) as sampler:
        session = sampler.drive(lease_seconds=1)
        session.observe()
        session.close()
        sampler.update_agent(rollserve.RandomAgent())
        assert sampler.obtain_samples(10).num_steps  # beside it
        time.sleep(1.3)
        with (
            raises(rollserve.InvalidArgumentError, reason="SESSION_NOT_FOUND"),
            sampler.resume_session(session.token) as other,
        ):
            other.observe()
        with (
            raises(rollserve.InvalidArgumentError, field="spec.lease_seconds"),
            sampler.drive(lease_seconds=3601) as one,
        ):
            one.observe()


def test_session_is_its_principals(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "tokens.json")
    options = "--env", "CartPole-v1", "--backend", "in-process", *tokens.options
    with local_server(*options, log=tmp_path / "server.log") as running:
        texts = [tokens.create(name, "drive") for name in ("one", "other")]
        one, other = (rollserve.connect(running.address, token=text) for text in texts)
        with one, other:
            session = one.drive(lease_seconds=30)
            session.observe()
            with (
                raises(rollserve.InvalidArgumentError, reason="SESSION_NOT_FOUND"),
                other.resume_session(session.token) as stolen,
            ):
                stolen.observe()
            session.end()
