"""Servers that make faults on demand, for tests of trainers: each fault is real, and calls survive it as documented."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import equal, raises

import rollserve
from rollserve_server.testing import FaultyServer, faulty_server


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyServer]:
    with faulty_server(
        "--vectorization", "rows", "--rows", "4", log=tmp_path_factory.mktemp("server") / "log"
    ) as running:
        yield running


@pytest.fixture
def server(shared: FaultyServer) -> FaultyServer:
    shared.reset()
    return shared


@pytest.fixture
def sampler(server: FaultyServer) -> Iterator[rollserve.Sampler]:
    with rollserve.connect(server.address, max_message_bytes=4096) as connected:
        connected.update_agent(rollserve.RandomAgent())
        yield connected


CALLS: dict[str, Callable[[rollserve.Sampler], rollserve.EpisodeBatch]] = {
    "samples": lambda sampler: sampler.obtain_samples(2_000, seed=3),
    "exact episodes": lambda sampler: sampler.obtain_exact_episodes(20, seed=3),
    "fragments": lambda sampler: sampler.obtain_fragments(2_000, seed=3),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_broken_streams_are_resumed_with_the_same_bytes(
    server: FaultyServer, sampler: rollserve.Sampler, call: Callable[[rollserve.Sampler], rollserve.EpisodeBatch]
) -> None:
    whole = call(sampler)
    server.break_stream(after_messages=2, times=3)
    batch = call(sampler)
    server.check_faults()
    assert equal(batch, whole)
    assert batch.account.num_resumptions == 3


@pytest.mark.parametrize("num_messages", [0, 1, 5])
def test_stream_breaks_after_the_given_number_of_messages(
    server: FaultyServer, sampler: rollserve.Sampler, num_messages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollserve._calls.interruptions.Interruptions.pause", lambda *_, **__: None)  # never again
    server.break_stream(after_messages=num_messages)
    num_received = 0
    with raises(rollserve.UnavailableError, reason="", quotes="a test has asked for it"):
        for _ in sampler.stream_samples(4_000):
            num_received += 1
    assert num_received == num_messages


def test_stream_of_few_messages_breaks_before_its_account(server: FaultyServer, sampler: rollserve.Sampler) -> None:
    server.break_stream(after_messages=1_000)
    account = sampler.obtain_samples(100).account
    assert account.num_resumptions == 1
    server.check_faults()


def test_killed_worker_is_replaced_and_its_episodes_run_again(server: FaultyServer, sampler: rollserve.Sampler) -> None:
    whole = sampler.obtain_samples(2_000, seed=3)
    server.kill_worker(1)
    batch = sampler.obtain_samples(2_000, seed=3)
    assert equal(batch, whole)
    assert batch.account.retry_reasons["worker_lost"] > 0
    workers = sampler.status().workers
    assert [worker.num_restarts for worker in workers] == [0, 1]
    while not all(worker.healthy for worker in sampler.status().workers):
        time.sleep(0.05)


def agent_alone(sampler: rollserve.Sampler) -> Any:
    return sampler.update_agent(rollserve.ConstantAgent(1))


def agent_in_a_call(sampler: rollserve.Sampler) -> Any:
    return sampler.obtain_samples(10, agent=rollserve.ConstantAgent(1))


@pytest.mark.parametrize("update", [agent_alone, agent_in_a_call])
def test_refused_agent_leaves_the_sampler_as_it_was(
    server: FaultyServer, sampler: rollserve.Sampler, update: Callable[[rollserve.Sampler], Any]
) -> None:
    server.refuse_update(times=2)
    for _ in range(2):
        with raises(rollserve.InvalidArgumentError, reason=rollserve.Reason.AGENT_REFUSED):
            update(sampler)
    status = sampler.status()
    assert (status.policy_version, status.env_version, status.agent_kinds) == (1, 1, ("random",))
    update(sampler)
    assert sampler.status().policy_version == 2


def test_refused_environment_leaves_the_sampler_as_it_was(server: FaultyServer, sampler: rollserve.Sampler) -> None:
    server.refuse_update("environment")
    sampler.update_agent(rollserve.RandomAgent())  # is not refused
    with raises(rollserve.InvalidArgumentError, reason=rollserve.Reason.ENV_REFUSED):
        sampler.update_env("Acrobot-v1")
    assert sampler.status().env_version == 1
    assert sampler.update_env("Acrobot-v1").env_version == 2


def test_delayed_call_reaches_the_deadline_of_its_client(server: FaultyServer, sampler: rollserve.Sampler) -> None:
    server.delay(60, rpc="ObtainSamples")
    assert sampler.status().policy_version == 1  # another RPC
    with pytest.raises(rollserve.DeadlineError):
        sampler.obtain_samples(10, timeout=0.3)
    assert sampler.obtain_samples(10).num_steps >= 10


def test_faults_wait_until_they_are_made_or_the_server_is_reset(
    server: FaultyServer, sampler: rollserve.Sampler
) -> None:
    server.break_stream(times=2)
    server.kill_worker(1)
    sampler.obtain_exact_episodes(1)
    waiting, made = (server.faults()[name] for name in ("waiting", "made"))
    assert waiting == []
    assert sorted(fault["fault"] for fault in made) == ["break-stream", "break-stream", "kill-worker"]
    server.delay(60)
    with pytest.raises(AssertionError, match="delay"):
        server.check_faults()
    server.reset()
    assert server.faults() == {"waiting": [], "made": []}


@pytest.mark.parametrize(
    ("fault", "field"),
    [
        ({}, "fault"),
        ({"fault": "meteor"}, "fault"),
        ({"fault": "delay"}, "seconds"),
        ({"fault": "delay", "seconds": 0}, "seconds"),
        ({"fault": "delay", "seconds": 1, "rpc": "ObtainSample"}, "rpc"),
        ({"fault": "kill-worker", "worker_index": "1"}, "worker_index"),
        ({"fault": "kill-worker", "after_orders": -1}, "after_orders"),
        ({"fault": "break-stream", "times": 0}, "times"),
        ({"fault": "refuse-update", "update": "sampler"}, "update"),
        ({"fault": "refuse-update", "reason": "NO_AGENT"}, "reason"),
    ],
)
def test_unknown_fault_is_refused(server: FaultyServer, fault: dict[str, object], field: str) -> None:
    with pytest.raises(RuntimeError, match=rf"^{field}: expected .*, got "):
        server.ask(fault)
    assert server.faults()["waiting"] == []


def test_server_with_another_backend_does_not_start(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with (
        pytest.raises(RuntimeError, match="backend: expected 'in-process'"),
        faulty_server("--backend", "ray", log=log),
    ):
        pass


EPISODES = [
    {"observations": [[0, 1], [2, 3], [4, 5]], "rewards": [1, [0.5, -0.5]], "infos": [{}, {"a": 1.5}, {"a": 2.5}]},
    {"observations": [[9, 9], [8, 8]], "rewards": [7], "end": "truncated"},
]


def test_scripted_episodes_have_the_numbers_of_their_scripts(sampler: rollserve.Sampler) -> None:
    sampler.update_env("Scripted-v0", kwargs={"episodes": EPISODES})
    sampler.update_agent(rollserve.ConstantAgent(1))
    batch = sampler.obtain_exact_episodes(8)
    assert batch.env_seeds is not None
    scripts = batch.env_seeds % 2
    assert set(scripts) == {0, 1}
    for script, episode in zip(scripts, batch.split(), strict=True):
        expected = EPISODES[script]
        assert episode.observations.dtype == np.float32
        states = [*episode.observations.tolist(), *episode.last_observations.tolist()]
        assert states == expected["observations"]
        assert episode.rewards.tolist() == [[1, -0.5], [7]][script]
        assert (episode.terminated[0], episode.truncated[0]) == (script == 0, script == 1)
        if script == 0:
            assert episode.env_infos["a"].tolist() == [1.5, 2.5]


def test_scripted_actions_and_observations_have_the_given_spaces(sampler: rollserve.Sampler) -> None:
    frames = np.arange(2 * 4 * 4 * 3).reshape(2, 4, 4, 3)
    script = {"observations": frames.tolist(), "rewards": [0]}
    updated = sampler.update_env("Scripted-v0", kwargs={"episodes": [script], "actions": [3], "dtype": "uint8"})
    space = updated.observation_space
    assert isinstance(space, rollserve.spaces.Box)
    assert (space.shape, space.dtype) == ((4, 4, 3), np.uint8)
    sampler.update_agent(rollserve.RandomAgent())
    batch = sampler.obtain_exact_episodes(1)
    assert batch.actions.shape == (2, 3)
    assert np.array_equal(batch.observations[0], frames[0])


@pytest.mark.parametrize(
    ("kwargs", "quote"),
    [
        ({"episodes": []}, "episodes: expected a list of at least one episode"),
        ({"episodes": [{"rewards": [1]}]}, "episodes[0]: expected an object with observations and rewards"),
        ({"episodes": [{"observations": [0, 1], "rewards": []}]}, "episodes[0].rewards: expected"),
        ({"episodes": [{"observations": [0], "rewards": [1]}]}, "episodes[0].observations: expected 2 elements"),
        ({"episodes": [{"observations": [0, 1], "rewards": [[1]]}]}, "rewards[0]: expected a number, or a list of 2"),
        ({"episodes": [{"observations": [0, 1], "rewards": [1], "end": "done"}]}, "episodes[0].end: expected"),
        (
            {"episodes": [{"observations": [x, x], "rewards": [1]} for x in (0, [0])]},
            "episodes: expected observations of one shape",
        ),
    ],
)
def test_malformed_script_is_refused(sampler: rollserve.Sampler, kwargs: dict[str, object], quote: str) -> None:
    with raises(rollserve.InvalidArgumentError, reason=rollserve.Reason.ENV_REFUSED, quotes=quote):
        sampler.update_env("Scripted-v0", kwargs=kwargs)
