"""Sessions: clients that act step by step, what is recorded of it, and environments behind gymnasium's interface."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import re
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from queue import SimpleQueue
from types import MappingProxyType
from typing import Any

import grpc
import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from mlp_agents import spec_of
from support import equal, raises

import rollserve
from rollserve_server.agents import Exploration, build_agent
from rollserve_server.local import LocalServer, local_server
from rollserve_wire.tensors import named_tensors_to_proto
from rollserve_wire.v1 import sampler_service_pb2 as pb
from rollserve_wire.v1.sampler_service_pb2_grpc import SamplerServiceStub

PAGE = (Path(__file__).parents[2] / "docs" / "gymnasium.md").read_text()
EXAMPLES = re.findall(r"<!-- tested -->\n```python\n(.*?)```", PAGE, re.DOTALL)
NUM_STEPS = 40
INFOS = {"log_prob": np.float32(0), "pair": np.zeros(2)}


@pytest.fixture(scope="module")
def server(light_server: LocalServer) -> LocalServer:
    return light_server


class Driven:
    """What a session shows, and what it records."""

    def __init__(
        self,
        sampler: rollserve.Sampler[Any],
        batches_at: tuple[int, ...] = (),
        kill_at: int | None = None,
        versions: Mapping[int, int] = MappingProxyType({}),
        **options: Any,
    ) -> None:
        generator, self.batches = np.random.default_rng(0), []
        with sampler.drive(seed=5, agent_infos=INFOS, **options) as session:
            self.steps = [session.observe()]
            space = session.action_space
            for number in range(NUM_STEPS):
                if number == kill_at:
                    os.kill(sampler.status().workers[0].process_id, signal.SIGKILL)
                actions = random_actions(generator, space, session.num_rows)
                infos = {"log_prob": np.full(session.num_rows, number, np.float32)}
                session.policy_version = versions.get(number, session.policy_version)
                infos["pair"] = np.arange(2.0) + number + np.zeros((session.num_rows, 2))
                self.steps.append(session.step(actions, infos))
                if number in batches_at:
                    self.batches.append(session.batch())
            self.batches.append(session.batch())
        self.account = session.account

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Driven)
        shown = zip(self.steps, other.steps, strict=True)
        recorded = zip(map(without_spaces, self.batches), map(without_spaces, other.batches), strict=True)
        return all(same_step(*each) for each in shown) and all(equal(*each) for each in recorded)

    __hash__ = None  # type: ignore[assignment]


def without_spaces(batch: rollserve.EpisodeBatch) -> rollserve.EpisodeBatch:
    return dataclasses.replace(batch, observation_space=None, action_space=None)


def same_step(one: rollserve.DrivenStep, other: rollserve.DrivenStep) -> bool:
    return all(np.array_equal(value, vars(other)[name]) for name, value in vars(one).items())


def random_actions(generator: np.random.Generator, space: rollserve.spaces.Space, num_rows: int) -> np.ndarray:
    if isinstance(space, rollserve.spaces.Discrete):
        return generator.integers(space.n, size=num_rows)
    assert isinstance(space, rollserve.spaces.Box)
    return generator.uniform(-1, 1, (num_rows, *space.shape)).astype(np.float32)


def recorded_rows(batch: rollserve.EpisodeBatch) -> list[slice]:
    """The steps of each segment."""
    ends = np.cumsum(batch.lengths)
    return [slice(end - length, end) for end, length in zip(ends, batch.lengths, strict=True)]


def test_recorded_episodes_are_those_of_plain_environments(cartpole: rollserve.Sampler[Any]) -> None:
    driven = Driven(cartpole, batches_at=(9, 16), fragment_length=16)
    assert [len(each.rewards) for each in driven.batches] == [80, 56, 184]
    assert driven.account.num_steps == 8 * NUM_STEPS
    env = gymnasium.make("CartPole-v1")
    num_ended = 0
    for batch in driven.batches:
        for index, steps in enumerate(recorded_rows(batch)):
            if batch.first_steps[index]:
                continue
            observation, _ = env.reset(seed=int(batch.env_seeds[index]))
            columns = batch.observations[steps], batch.actions[steps], batch.rewards[steps]
            for shown, action, reward in zip(*columns, strict=True):
                assert np.array_equal(shown, observation)
                observation, expected, terminated, truncated, _ = env.step(action)
                assert reward == expected
            assert np.array_equal(batch.last_observations[index], observation)
            assert (terminated, truncated) == (batch.terminated[index], batch.truncated[index])
            num_ended += terminated
    assert num_ended


def test_steps_show_what_is_recorded(cartpole: rollserve.Sampler[Any]) -> None:
    driven = Driven(cartpole, fragment_length=NUM_STEPS, max_episode_length=11)
    (batch,), shown = driven.batches, driven.steps[:-1]
    episodes = np.repeat(batch.episode_indices, batch.lengths)
    for index in np.unique(episodes).tolist():
        seen = np.concatenate([step.observations[step.episode_indices == index] for step in shown])
        assert np.array_equal(seen, batch.observations[episodes == index])
    ended = batch.terminated | batch.truncated
    assert sum(len(step.ended_rows) for step in driven.steps) == ended.sum()
    assert sum(step.truncated.sum() for step in driven.steps) == batch.truncated.sum() > 0
    last = np.concatenate([step.last_observations for step in driven.steps])
    assert sorted(map(tuple, last)) == sorted(map(tuple, batch.last_observations[ended]))
    assert set(batch.agent_infos) == set(INFOS)
    assert np.array_equal(batch.agent_infos["pair"][:, 0], batch.agent_infos["log_prob"])


def test_policy_versions_are_those_of_the_actions(cartpole: rollserve.Sampler[Any]) -> None:
    versions = {3: 7, 20: 2**63 - 1, 30: 7, 32: 7, 36: 0}
    driven = Driven(cartpole, batches_at=(9, 29), versions=versions, fragment_length=16)
    plain = Driven(cartpole, fragment_length=NUM_STEPS)
    assert all(map(same_step, driven.steps, plain.steps))
    whole = rollserve.EpisodeBatch.concatenate(*driven.batches)
    acting = np.repeat([0, 7, 2**63 - 1, 7, 0], [3, 17, 10, 6, 4])
    recorded = np.repeat(whole.policy_versions, whole.lengths)
    assert np.array_equal(recorded, acting[whole.agent_infos["log_prob"].astype(np.int64)])
    assert [each.round.policy_version for each in driven.batches if each.round] == [7, 2**63 - 1, 0]
    assert driven.account.num_steps == 8 * NUM_STEPS
    # They end where the version changes, with a batch, and every 16 steps: at 3, 10, 16, 20, 30, 32, 36 and 40.
    assert driven.account.num_rounds == 8


@pytest.mark.parametrize(("version", "field"), [(-1, "policy_version"), (2**63, "policy_version")])
def test_wrong_policy_versions_are_refused(cartpole: rollserve.Sampler[Any], version: int, field: str) -> None:
    with cartpole.drive() as session, raises(rollserve.InvalidArgumentError, field=field):
        session.policy_version = version


@pytest.mark.parametrize("spec", [("CartPole-v1", "native"), ("Pendulum-v1", "rows")])
def test_sessions_are_functions_of_seed_and_actions(sampler: rollserve.Sampler[Any], spec: tuple[str, Any]) -> None:
    sampler.update_env(rollserve.EnvSpec(spec[0], vectorization=spec[1]))
    first = Driven(sampler, batches_at=(20,), fragment_length=16)
    assert Driven(sampler, batches_at=(20,), fragment_length=16) == first
    assert all(map(same_step, Driven(sampler, fragment_length=7).steps, first.steps))


def test_worker_that_is_killed_makes_the_same_steps_again(ray_server: LocalServer) -> None:
    with rollserve.connect(ray_server.address) as sampler:
        sampler.update_env("CartPole-v1")
        options: dict[str, Any] = {"fragment_length": 64, "env_seeds": range(8), "versions": {3: 1, 20: 2}}
        whole = Driven(sampler, **options)
        disturbed = Driven(sampler, **options, kill_at=5)
    assert disturbed == whole
    assert disturbed.steps[0].env_seeds.tolist() == list(range(8))
    account = disturbed.account
    assert account.num_simulated_steps == account.num_steps + account.num_lost_steps
    assert account.num_lost_steps > 0


@pytest.mark.parametrize("env_id", ["CartPole-v1", "HalfCheetah-v5"])
def test_agent_makes_the_same_episodes_outside_as_inside(sampler: rollserve.Sampler[Any], env_id: str) -> None:
    updated = sampler.update_env(rollserve.EnvSpec(env_id, vectorization="rows"))
    agent = rollserve.MlpAgent.initial(updated.observation_space, updated.action_space, seed=2)
    sampler.update_agent(agent)
    best = Exploration(deterministic=True)
    with sampler.drive(seed=5, fragment_length=NUM_STEPS, max_episode_length=17) as session:
        step = session.observe()
        env, num_rows = gymnasium.make(env_id), session.num_rows
        policy = build_agent(spec_of(agent), env.observation_space, env.action_space, num_rows, exploration=best)
        for _ in range(NUM_STEPS):
            (actions,), _ = policy.act([np.asarray(step.observations)], np.zeros((num_rows, policy.noise_width)))
            step = session.step(actions)
        outside = session.batch()
    num_steps = NUM_STEPS * num_rows
    inside = sampler.obtain_fragments(num_steps, seed=5, max_episode_length=17, deterministic=True)
    agents_own = {"agent_infos": {}, "policy_versions": outside.policy_versions}
    assert equal(without_spaces(outside), dataclasses.replace(without_spaces(inside), **agents_own))


def test_step_that_kills_its_worker_each_time_ends_the_session(ray_server: LocalServer) -> None:
    with rollserve.connect(ray_server.address) as sampler:
        sampler.update_env(rollserve.EnvSpec("sample_envs:Deadly", {"num_steps": 60}, vectorization="rows", num_rows=1))
        with raises(rollserve.UnavailableError, reason="WORKER_LOST_AGAIN"), sampler.drive() as session:
            for number in range(60):
                assert session.observe().number == number
                session.step(np.zeros(session.num_rows, np.int64))


@pytest.mark.parametrize(
    ("actions", "field"),
    [
        (np.full(8, 2), "actions.actions[''][0]"),
        (np.zeros(7, np.int64), "actions"),
        (np.zeros(8), "actions"),
        ({"left": np.zeros(8)}, "actions"),
    ],
    ids=["outside", "too few", "dtype", "name"],
)
def test_wrong_actions_are_refused(cartpole: rollserve.Sampler[Any], actions: Any, field: str) -> None:
    with raises(rollserve.InvalidArgumentError, field=field), cartpole.drive() as session:
        session.step(actions)


def test_session_without_steps_has_an_empty_account(cartpole: rollserve.Sampler[Any]) -> None:
    with cartpole.drive() as session:
        step = session.observe()
        with raises(rollserve.PreconditionError, field="batch"):
            session.batch()
    assert step.number == 0
    assert not step.rewards.any()
    assert session.account.num_simulated_steps == 0


def test_session_that_has_ended_makes_no_step(cartpole: rollserve.Sampler[Any]) -> None:
    with cartpole.drive() as session:
        session.step(np.zeros(8, np.int64))
        session.end()
        with raises(rollserve.PreconditionError, field="session"):
            session.step(np.zeros(8, np.int64))
        assert session.batch().num_steps == 8


def test_other_calls_run_beside_a_session(sampler: rollserve.Sampler[Any]) -> None:
    with sampler.drive(record=False) as session:
        session.step(np.zeros(8, np.int64))
        assert sampler.obtain_samples(100).num_steps >= 100
        session.step(np.zeros(8, np.int64))
    assert session.account.num_discarded_steps == 16


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
def test_vector_env_equals_gymnasiums(cartpole: rollserve.Sampler[Any], autoreset: Any) -> None:
    generator = np.random.default_rng(0)
    with contextlib.closing(cartpole.vector_env(autoreset=autoreset)) as envs:
        mode = AutoresetMode[autoreset.upper()]
        assert envs.metadata["autoreset_mode"] is mode
        plain = SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * envs.num_envs, autoreset_mode=mode)
        assert (envs.observation_space, envs.action_space) == (plain.observation_space, plain.action_space)
        for seed in (3, [9, 2, 2, 0, 2**32 - 1, 5, 6, 7]):
            shown, infos = envs.reset(seed=seed)
            assert not infos
            expected, _ = plain.reset(seed=seed)
            assert np.array_equal(shown, expected)
            is_first = np.ones(envs.num_envs, np.bool_)  # later episodes have seeds of their own
            while is_first.any():
                actions = generator.integers(2, size=envs.num_envs)
                one, other = envs.step(actions), plain.step(actions)
                ended = other[2] | other[3]
                compared = is_first & ~ended if autoreset == "same_step" else is_first
                assert np.array_equal(one[0][compared], other[0][compared])
                for mine, its in zip(one[1:4], other[1:4], strict=True):
                    assert mine.dtype == its.dtype
                    assert np.array_equal(mine[is_first], its[is_first])
                for row in np.flatnonzero(is_first & ended).tolist() if autoreset == "same_step" else ():
                    assert one[4]["_final_obs"][row]
                    assert np.array_equal(one[4]["final_obs"][row], other[4]["final_obs"][row])
                is_first &= ~ended


def test_seeds_of_first_episodes_are_recorded(cartpole: rollserve.Sampler[Any]) -> None:
    given = [40, 3, 3, 2**32 - 1, 0, 1, 2, 9]
    first = Driven(cartpole, batches_at=(20,), fragment_length=16, env_seeds=given, max_episode_length=15)
    derived = Driven(cartpole, fragment_length=16, max_episode_length=15)
    assert first.steps[0].env_seeds.tolist() == given
    (batch, last), (other,) = first.batches, derived.batches
    of_episodes = dict(zip(batch.episode_indices.tolist(), batch.env_seeds.tolist(), strict=True))
    assert [of_episodes[row] for row in range(8)] == given
    later, expected = (
        dict(zip(each.episode_indices.tolist(), each.env_seeds.tolist(), strict=True)) for each in (last, other)
    )
    assert {index for index in later if index >= 8} & expected.keys()
    assert all(expected.get(index, seed) == seed for index, seed in later.items() if index >= 8)


def test_resets_without_a_seed_follow_from_the_last_one(cartpole: rollserve.Sampler[Any]) -> None:
    shown = []
    for _ in range(2):
        with contextlib.closing(cartpole.vector_env(seed=7)) as envs:
            shown.append([envs.reset()[0] for _ in range(3)])
            assert np.array_equal(envs.reset(seed=7)[0], shown[-1][0])
            assert np.array_equal(envs.reset(seed=range(7, 15))[0], shown[-1][0])
            with raises(rollserve.InvalidArgumentError, field="seed"):
                envs.reset(seed=[7, 8])
            assert envs.reset(seed=[7, None, *range(9, 15)])[0].shape == (8, 4)
            assert envs.env_seeds.tolist()[2:] == list(range(9, 15))
    assert np.array_equal(*shown)
    assert not any(np.array_equal(shown[0][first], shown[0][second]) for first, second in ((0, 1), (0, 2), (1, 2)))


def test_seeds_of_rows_that_are_stepped_at_once_are_refused(sampler: rollserve.Sampler[Any]) -> None:
    sampler.update_env(rollserve.EnvSpec("CartPole-v1", vectorization="native"))
    with (
        raises(rollserve.InvalidArgumentError, field="spec.environment_seeds", quotes="stepped at once"),
        sampler.drive(env_seeds=range(8)) as session,
    ):
        session.observe()
    with raises(rollserve.InvalidArgumentError, field="autoreset"):
        sampler.vector_env()
    with contextlib.closing(sampler.vector_env(autoreset="same_step")) as envs:
        first, _ = envs.reset(seed=7)
        assert np.array_equal(envs.reset(seed=7)[0], first)
        with raises(rollserve.InvalidArgumentError, field="seed", quotes="stepped at once"):
            envs.reset(seed=range(8))


@pytest.mark.parametrize(("seeds", "field"), [((1, 2, 3), "spec.environment_seeds"), ([-1] * 8, "env_seeds[0]")])
def test_wrong_seeds_are_refused(cartpole: rollserve.Sampler[Any], seeds: Any, field: str) -> None:
    with raises(rollserve.InvalidArgumentError, field=field), cartpole.drive(env_seeds=seeds) as session:
        session.observe()


def test_row_is_reset_in_the_step_after_the_end(cartpole: rollserve.Sampler[Any]) -> None:
    with contextlib.closing(cartpole.vector_env(max_episode_length=3, record=True)) as envs:
        envs.reset(seed=1)
        seen = [envs.step(np.zeros(8, np.int64)) for _ in range(8)]
        batch = envs.batch()
    assert [bool(step[3].all()) for step in seen] == [False, False, True, False, False, False, True, False]
    assert [float(step[1].sum()) for step in seen] == [8, 8, 8, 0, 8, 8, 8, 0]
    assert batch.num_steps == 48
    assert set(batch.lengths.tolist()) == {3}


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_of_the_page_run(cartpole: rollserve.Sampler[Any], server: LocalServer, example: str) -> None:
    exec(example.replace("127.0.0.1:50051", server.address), {})


def test_end_of_fragment_that_has_ended_by_itself_ends_no_other(
    cartpole: rollserve.Sampler[Any], server: LocalServer
) -> None:
    num_rows, requests = 8, SimpleQueue[Any]()
    requests.put(pb.DriveEnvironmentsRequest(spec=pb.DriveSpec(fragment_length=2)))
    actions = named_tensors_to_proto({"": np.zeros(num_rows, np.int64)})
    rounds = []
    with grpc.insecure_channel(server.address) as channel:
        for response in SamplerServiceStub(channel).DriveEnvironments(iter(requests.get, None)):
            if response.WhichOneof("content") == "round":
                rounds.append(response.round.step_count)
            elif response.WhichOneof("content") == "step":
                number = response.step.step
                if number % 2 == 0:
                    requests.put(pb.DriveEnvironmentsRequest(fragment_end=pb.FragmentEnd()))
                acting = pb.DrivenActions(step=number, actions=actions)
                requests.put(pb.DriveEnvironmentsRequest(actions=acting) if number < 40 else None)
    assert rounds == [2 * num_rows] * 20


@pytest.mark.parametrize("option", ["policy_version", "exploration", "prefetch"])
def test_options_of_agents_are_refused(server: LocalServer, option: str) -> None:
    values: dict[str, Any] = {"policy_version": 1, "exploration": {"deterministic": True}, "prefetch": True}
    options = pb.SamplingOptions(**{option: values[option]})
    request = pb.DriveEnvironmentsRequest(spec=pb.DriveSpec(options=options, fragment_length=1))
    with grpc.insecure_channel(server.address) as channel:
        call = SamplerServiceStub(channel).DriveEnvironments(iter([request]))
        with pytest.raises(grpc.RpcError, match=f"spec.options.{option}: expected none for a session"):
            next(call)


def test_session_of_nobody_ends(tmp_path: Path) -> None:
    options = "--env", "CartPole-v1", "--backend", "in-process", "--max-calls", "1", "--client-stall-seconds", "1"
    with local_server(*options, log=tmp_path / "server.log") as running, rollserve.connect(running.address) as sampler:
        session = sampler.drive()
        session.observe()
        time.sleep(1.2)
        with raises(rollserve.UnavailableError, reason="CLIENT_STALLED"):
            session.step(np.zeros(session.num_rows, np.int64))
        with sampler.drive() as left:
            left.observe()
            left.close()
        with sampler.drive() as another:
            assert another.observe().number == 0
            assert another.step(np.zeros(another.num_rows, np.int64)).number == 1


def test_session_ends_when_the_number_of_workers_changes(thread_sampler: rollserve.Sampler[Any]) -> None:
    with raises(rollserve.PreconditionError, reason="WORKER_COUNT"), thread_sampler.drive() as session:
        session.observe()
        thread_sampler.resize(3)
        for _ in range(2):
            session.step(np.zeros(8, np.int64))
            session.batch()


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
def test_vector_env_has_infos_as_gymnasiums(sampler: rollserve.Sampler[Any], autoreset: Any) -> None:
    sampler.update_env(rollserve.EnvSpec("HalfCheetah-v5", vectorization="rows", num_rows=3))
    mode, limit = AutoresetMode[autoreset.upper()], 4
    with contextlib.closing(sampler.vector_env(autoreset=autoreset, max_episode_length=limit)) as envs:
        make = functools.partial(gymnasium.make, "HalfCheetah-v5", max_episode_steps=limit)
        plain = SyncVectorEnv([make] * envs.num_envs, autoreset_mode=mode)
        _, infos = envs.reset(seed=3)
        _, expected = plain.reset(seed=3)
        assert data_equivalence(infos, expected)
        assert infos
        plain.action_space.seed(0)
        for number in range(1, limit + 1):
            actions = plain.action_space.sample()
            infos, expected = envs.step(actions)[4], plain.step(actions)[4]
            if number == limit and autoreset == "same_step":  # the other infos are of resets with other seeds
                ends = ("final_obs", "_final_obs", "final_info", "_final_info")
                infos, expected = ({name: each[name] for name in ends} for each in (infos, expected))
                assert infos.pop("final_obs").tolist()[0].tobytes() == expected.pop("final_obs").tolist()[0].tobytes()
            assert data_equivalence(infos, expected)
        plain.close()


def test_infos_of_native_rows_are_shown(sampler: rollserve.Sampler[Any]) -> None:
    sampler.update_env(rollserve.EnvSpec("sample_envs:Infos-v0", {"mode": "SameStep"}, vectorization="native"))
    with sampler.drive(seed=1, infos=True) as session:
        session.observe()
        actions = random_actions(np.random.default_rng(0), session.action_space, session.num_rows)
        step = session.step(actions)
        batch = session.batch()
    assert {"kind", "steady"} <= set(step.infos)
    going_on, order = ~(step.terminated | step.truncated), np.argsort(batch.episode_indices)
    for name in ("kind", "steady"):
        assert np.array_equal(step.infos[name][going_on], batch.env_infos[name][order][going_on])
        assert np.array_equal(step.last_infos[name], batch.env_infos[name][order][step.ended_rows])


@pytest.mark.slow
def test_session_whose_client_thinks_keeps_no_call_from_running(tmp_path: Path) -> None:
    options = "--env", "CartPole-v1", "--backend", "in-process", "--max-calls", "1"
    with local_server(*options, log=tmp_path / "server.log") as running, rollserve.connect(running.address) as sampler:
        sampler.update_agent(rollserve.RandomAgent())
        with sampler.drive() as session:
            number = session.observe().number
            assert sampler.obtain_samples(1).num_steps
            session.step(np.zeros(session.num_rows, np.int64))
            assert session.observe().number == number + 1


def test_session_keeps_its_environment(thread_sampler: rollserve.Sampler[Any], thread_server: LocalServer) -> None:
    thread_sampler.update_env("CartPole-v1")
    with (
        rollserve.connect(thread_server.address) as other,
        thread_sampler.drive(fragment_length=2) as session,
    ):
        session.observe()
        other.update_env("Pendulum-v1")
        for number in range(1, 6):
            step = session.step(np.zeros(8, np.int64))
            assert (step.number, step.observations.shape) == (number, (8, 4))
        with raises(rollserve.PreconditionError, reason="UNEXPECTED_VERSION"), thread_sampler.drive() as another:
            another.observe()


@pytest.mark.parametrize(
    ("name", "info", "field"),
    [
        ("_value", np.float32(0), "spec.agent_infos['_value']"),
        ("state/h", np.zeros(3), "spec.agent_infos['state/h']"),
        ("huge", np.zeros(1 << 20), "spec.agent_infos"),
    ],
)
def test_infos_that_no_column_can_hold_are_refused(
    cartpole: rollserve.Sampler[Any], name: str, info: Any, field: str
) -> None:
    with raises(rollserve.InvalidArgumentError, field=field), cartpole.drive(agent_infos={name: info}) as session:
        session.observe()
