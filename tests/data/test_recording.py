"""Recordings on the server: the same episodes as of calls, however they end, and what is refused."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import minari
import numpy as np
import pytest
from raw_calls import soon
from support import raises, server_environment

import rollserve
from rollserve import EpisodeBatch, Reason
from rollserve.cli import main
from rollserve.data import verify
from rollserve_server.datasets import DatasetRecorder
from rollserve_server.errors import OverLimitError
from rollserve_server.local import LocalServer, local_server
from rollserve_wire.spaces import space_to_proto
from rollserve_wire.v1 import sampler_service_pb2 as pb
from rollserve_wire.v1.sampler_service_pb2_grpc import SamplerServiceStub

OPTIONS = ("--env", "CartPole-v1", "--vectorization", "rows", "--rows", "4", "--workers", "2")
OPTIONS += ("--backend", "in-process", "--allow-module", "sample_envs")
COLUMNS = ("observations", "actions", "rewards", "lengths", "terminated", "truncated", "last_observations", "env_seeds")

VERSIONS = itertools.count()

# The angle and the velocities of the pole and of the cart say where to push.
EXPERT = rollserve.MlpAgent(
    {"0/weight": np.float32([[0, 0, 0, 0], [0.1, 0.5, 6, 2]]), "0/bias": np.zeros(2, np.float32)}, head="categorical"
)


@pytest.fixture
def recording(
    recording_server: tuple[LocalServer, Path], request: pytest.FixtureRequest
) -> Iterator[tuple[rollserve.Sampler, str, Path]]:
    """The server's sampler with an agent, and the id and the folder of a dataset that does not exist."""
    server, folder = recording_server
    server.reset()
    name = f"{request.node.originalname.replace('_', '-')}-v{next(VERSIONS)}"
    with rollserve.connect(server.address) as sampler:
        sampler.update_agent(EXPERT)
        yield sampler, name, folder / name


def read(folder: Path) -> EpisodeBatch:
    return EpisodeBatch.concatenate(*rollserve.data.read(folder))


def state_of(folder: Path) -> dict[str, Any]:
    """Return what the metadata say about the recording."""
    state: dict[str, Any] = json.loads((folder / "data/metadata.json").read_text())["rollserve_recording"]
    return state


def assert_recorded(folder: Path, expected: EpisodeBatch) -> None:
    """Check that a dataset has the episodes of a batch, for Rollserve and for Minari."""
    found = read(folder)
    for name in COLUMNS:
        assert np.array_equal(getattr(found, name), getattr(expected, name)), name
    assert np.array_equal(found.episode_indices, expected.episode_indices)
    dataset = minari.MinariDataset(folder / "data")
    assert (dataset.total_episodes, dataset.total_steps) == (len(expected), expected.num_steps)


@contextmanager
def running(sampler: rollserve.Sampler, name: str, **amount: int) -> Iterator[Any]:
    """Begin a recording, and wait until it has episodes on disk."""
    address = sampler.__reduce__()[1][0].target  # type: ignore[index]
    with grpc.insecure_channel(address) as channel:
        request = pb.RecordDatasetRequest(dataset=name, options=pb.SamplingOptions(seed=5), **amount)  # type: ignore[arg-type]
        call = SamplerServiceStub(channel).RecordDataset(request)
        while not next(call).progress.episode_count:
            pass
        yield call


def test_recorded_episodes_are_those_of_a_call(recording: tuple[rollserve.Sampler, str, Path]) -> None:
    sampler, name, folder = recording
    result = sampler.record(name, num_steps=1500, seed=5, metadata={"author": {"A", "B"}, "description": "pole"})
    expected = sampler.obtain_samples(1500, seed=5)
    assert_recorded(folder, expected)
    assert (result.num_episodes, result.num_steps, result.seed) == (len(expected), expected.num_steps, 5)
    assert (result.num_added_episodes, result.policy_version) == (len(expected), 1)
    dataset = minari.MinariDataset(folder / "data")
    assert dataset.storage.metadata["author"] == {"A", "B"}
    assert dataset.recover_environment().spec.id == "CartPole-v1"
    checked = verify(folder)
    assert checked.is_equal
    assert len(checked.episodes) == len(expected)
    assert state_of(folder)["state"] == "complete"


def test_longer_recording_extends_the_dataset(recording: tuple[rollserve.Sampler, str, Path]) -> None:
    sampler, name, folder = recording
    first = sampler.record(name, num_episodes=7, seed=5)
    assert (first.num_episodes, first.next_episode_index) == (7, 7)
    assert sampler.record(name, num_episodes=7).num_added_episodes == 0
    sampler.update_agent(rollserve.RandomAgent())
    sampler.update_agent(EXPERT)  # as after a restart of the server, where versions have other numbers
    assert sampler.record(name, num_steps=first.num_steps + 2000).seed == 5
    assert_recorded(folder, sampler.obtain_samples(first.num_steps + 2000, seed=5))


def test_cancelled_recording_goes_on_where_it_stopped(recording: tuple[rollserve.Sampler, str, Path]) -> None:
    sampler, name, folder = recording
    with running(sampler, name, step_count=10**8) as call:
        call.cancel()
    assert soon(lambda: state_of(folder)["state"] == "cancelled")
    num_steps = minari.MinariDataset(folder / "data").total_steps
    assert num_steps < 10**8
    sampler.record(name, num_steps=num_steps + 1000)
    assert_recorded(folder, sampler.obtain_samples(num_steps + 1000, seed=5))


def test_dataset_is_recorded_by_one_call_at_a_time(recording: tuple[rollserve.Sampler, str, Path]) -> None:
    sampler, name, folder = recording
    with running(sampler, name, step_count=10**8) as call:
        with raises(rollserve.PreconditionError, field="dataset", reason="DATASET_IN_USE"):
            sampler.record(name, num_steps=10)
        call.cancel()
    assert soon(lambda: state_of(folder)["state"] == "cancelled")


def test_recording_waits_for_one_whose_end_the_server_learns_of_late(
    recording: tuple[rollserve.Sampler, str, Path],
) -> None:
    sampler, name, folder = recording
    with running(sampler, name, step_count=10**8) as call, ThreadPoolExecutor() as pool:

        def cancel_soon() -> None:
            time.sleep(0.3)
            call.cancel()

        pool.submit(cancel_soon)
        num_steps = sampler.record(name, num_steps=1000).num_steps
    assert_recorded(folder, sampler.obtain_samples(num_steps, seed=5))


def test_recording_that_fills_the_disk_fails_and_goes_on_with_room(
    recording_server: tuple[LocalServer, Path], recording: tuple[rollserve.Sampler, str, Path]
) -> None:
    sampler, name, folder = recording
    process_id = recording_server[0].process.pid
    sampler.record(name, num_episodes=3, seed=5)
    size = (folder / "data/main_data.hdf5").stat().st_size
    unlimited = resource.prlimit(process_id, resource.RLIMIT_FSIZE)
    resource.prlimit(process_id, resource.RLIMIT_FSIZE, (size + 200_000, unlimited[1]))
    try:
        with pytest.raises(rollserve.LimitError, match="expected room for the dataset") as caught:
            sampler.record(name, num_steps=200_000)
    finally:
        resource.prlimit(process_id, resource.RLIMIT_FSIZE, unlimited)
    assert caught.value.reason is Reason.DISK_FULL
    num_steps = minari.MinariDataset(folder / "data").total_steps
    assert state_of(folder)["state"] == "failed"
    assert_recorded(folder, sampler.obtain_samples(num_steps, seed=5))
    # What had reached the log is in the dataset, too.
    assert sampler.record(name, num_steps=num_steps + 500).num_steps >= num_steps + 500
    assert_recorded(folder, sampler.obtain_samples(read(folder).num_steps, seed=5))
    assert not (folder / "recording.log").exists()


@pytest.mark.slow
def test_recording_is_repaired_and_goes_on_after_its_server_was_killed(tmp_path: Path) -> None:
    options = (*OPTIONS, "--data-dir", str(tmp_path))
    serving = {"log": tmp_path / "log", "environment": server_environment()}
    with local_server(*options, **serving) as server, rollserve.connect(server.address) as sampler:  # type: ignore[arg-type]
        sampler.update_agent(EXPERT)
        with running(sampler, "a-v0", step_count=10**8):
            server.process.send_signal(signal.SIGKILL)
            server.process.wait()
    before = minari.MinariDataset(tmp_path / "a-v0/data").total_steps
    # The process that writes may still end a conversion.
    assert soon(lambda: main(["repair", str(tmp_path / "a-v0")]) == 0)
    assert state_of(tmp_path / "a-v0")["state"] == "repaired"
    repaired = read(tmp_path / "a-v0").num_steps
    assert repaired >= before
    with local_server(*options, **serving) as server, rollserve.connect(server.address) as sampler:  # type: ignore[arg-type]
        sampler.update_agent(EXPERT)
        sampler.record("a-v0", num_steps=repaired + 1000)
        assert_recorded(tmp_path / "a-v0", sampler.obtain_samples(repaired + 1000, seed=5))


@pytest.mark.parametrize("path", ["/tmp/a-v0", "../a-v0", "a/../../b-v0", "outside/a-v0", ""])
def test_paths_that_leave_the_folder_are_refused(
    recording: tuple[rollserve.Sampler, str, Path], tmp_path: Path, path: str
) -> None:
    sampler, _, folder = recording
    link = folder.parent / "outside"
    if not link.is_symlink():
        link.symlink_to(tmp_path)
    with pytest.raises(rollserve.InvalidArgumentError, match="dataset: expected a relative path") as caught:
        sampler.record(path, num_episodes=1)
    assert caught.value.reason is Reason.PATH_NOT_ALLOWED
    assert not any(tmp_path.iterdir())


def test_server_without_a_folder_records_nothing(thread_sampler: rollserve.Sampler) -> None:
    thread_sampler.update_agent(rollserve.RandomAgent())
    with pytest.raises(rollserve.InvalidArgumentError, match="--data-dir") as caught:
        thread_sampler.record("a-v0", num_episodes=1)
    assert caught.value.reason is Reason.PATH_NOT_ALLOWED


def test_datasets_of_other_origins_stay_as_they_are(recording: tuple[rollserve.Sampler, str, Path]) -> None:
    sampler, name, folder = recording
    sampler.record(name, num_episodes=3, seed=5)
    before = read(folder)
    changes: list[dict[str, Any]] = [{"seed": 6}, {"deterministic": True}]
    for change in changes:
        with pytest.raises(rollserve.PreconditionError, match="as recorded") as caught:
            sampler.record(name, num_episodes=5, **change)
        assert caught.value.reason is Reason.DATASET_DIFFERS
    sampler.update_agent(rollserve.RandomAgent())
    with pytest.raises(rollserve.PreconditionError, match="dataset: expected agent"):
        sampler.record(name, num_episodes=5)
    plain = before.to_minari("plain-v0", root=folder.parent, env="CartPole-v1")
    with pytest.raises(rollserve.PreconditionError, match="expected a dataset that a server recorded"):
        sampler.record("plain-v0", num_episodes=5)
    (plain / "data/metadata.json").write_text("{")
    with pytest.raises(rollserve.PreconditionError, match="expected a Minari dataset") as caught:
        sampler.record("plain-v0", num_episodes=5)
    assert caught.value.reason is Reason.DATASET_UNREADABLE
    assert np.array_equal(before.observations, read(folder).observations)


def test_recording_refuses_options_that_it_cannot_heed_by_name(recording: tuple[rollserve.Sampler, str, Path]) -> None:
    sampler, name, folder = recording
    refused: dict[str, dict[str, Any]] = {
        "options.blackhole": {"blackhole": True},
        "options.prefetch": {"prefetch": True},
        "options.agent_update": {"agent": rollserve.RandomAgent()},
        "options.observation_moments": {"observation_moments": True},
        "options.environment_version": {"env_version": 9},
        "episode_count": {"num_episodes": 0},
        "dataset": {"dataset_id": "no-version"},
    }
    for field, options in refused.items():
        with pytest.raises(rollserve.InvalidArgumentError) as caught:
            sampler.record(**{"dataset_id": name, "num_episodes": 1, **options})
        assert caught.value.field == field
    with pytest.raises(rollserve.InvalidArgumentError, match="num_episodes: expected it or num_steps"):
        sampler.record(name)
    with pytest.raises(TypeError, match="metadata"):
        sampler.record(name, num_episodes=1, metadata={"color": "red"})
    with raises(rollserve.PreconditionError, field="options.policy_version", reason="POLICY_VERSION"):
        sampler.record(name, num_episodes=1, policy_version=9)
    with raises(rollserve.InvalidArgumentError, field="options.exploration.epsilons"):
        sampler.record(name, num_episodes=1, epsilon=0.5)
    assert not folder.exists()
    with pytest.raises(rollserve.InvalidArgumentError, match="epsilon"):
        sampler.record(name, num_episodes=1, epsilon=0.5, seed=1)
    assert sampler.record(name, num_episodes=1, seed=5).num_episodes == 1


def test_agent_that_does_not_fit_leaves_no_dataset(recording: tuple[rollserve.Sampler, str, Path]) -> None:
    sampler, name, folder = recording
    sampler.update_env("Pendulum-v1")
    with raises(rollserve.PreconditionError, reason=Reason.AGENT_MISFIT):
        sampler.record(name, num_episodes=1)
    sampler.update_env(rollserve.EnvSpec("mpe/simple_spread-v3", {"max_cycles": 5}, multi_agent="parallel"))
    sampler.update_agent({"hero": rollserve.RandomAgent()})
    sampler.update_env("CartPole-v1")
    with raises(rollserve.PreconditionError, reason=Reason.AGENT_MISFIT):
        sampler.record(name, num_episodes=1)
    assert not folder.exists()


def test_command_and_coroutine_record(
    recording_server: tuple[LocalServer, Path],
    recording: tuple[rollserve.Sampler, str, Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    sampler, name, folder = recording
    address = recording_server[0].address
    assert main(["record", address, name, "--episodes", "3", "--seed", "5", "--author", "A"]) == 0
    assert f"{name}: 3 episodes" in capsys.readouterr().out

    async def extend() -> rollserve.Recording:
        async with rollserve.aconnect(address) as connected:
            return await connected.record(name, num_episodes=5)

    assert asyncio.run(extend()).num_added_episodes == 2
    assert_recorded(folder, EpisodeBatch.concatenate(*sampler.obtain_samples(5000, seed=5).split()[:5]))


def test_dataset_clones_the_behaviour_in_a_script_that_knows_only_minari(
    recording: tuple[rollserve.Sampler, str, Path],
) -> None:
    sampler, name, folder = recording
    sampler.record(name, num_episodes=20, deterministic=True, seed=5)
    script = Path(__file__).parents[2] / "examples" / "behaviour_cloning.py"
    environment = os.environ | {"MINARI_DATASETS_PATH": str(folder.parent)}
    command = [sys.executable, str(script), name]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert float(done.stdout.split()[-1]) > 400


async def test_nothing_is_added_behind_an_addition_that_found_no_room(
    recording: tuple[rollserve.Sampler, str, Path],
) -> None:
    sampler, name, folder = recording
    address = sampler.__reduce__()[1][0].target  # type: ignore[index]
    options = pb.SamplingOptions(seed=5, max_message_bytes=1 << 16)
    with grpc.insecure_channel(address) as channel:
        request = pb.ObtainSamplesRequest(step_count=10_000, options=options)
        responses = [each for each in SamplerServiceStub(channel).ObtainSamples(request) if each.HasField("batch")]
    messages = [response.SerializeToString() for response in responses]
    spaces = sampler.obtain_samples(1, return_spaces=True)
    assert spaces.observation_space is not None
    assert spaces.action_space is not None
    opening = {
        "root": str(folder.parent),
        "folder": str(folder),
        "dataset": name,
        "metadata": {},
        "origin": {"seed": 5, "first_episode_index": 0, "rows_of_a_block": None},
        "env": {"id": "CartPole-v1", "kwargs": {}, "wrappers": []},
        "receipt": None,
    }
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 17, before[1]))  # of the process that writes, too
    try:
        space_messages = [space_to_proto(each) for each in (spaces.observation_space, spaces.action_space)]
        recorder = await DatasetRecorder.start(opening, [each.SerializeToString() for each in space_messages])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    for part in (messages[:-1], messages[-1:]):  # the last one alone would have room
        with pytest.raises(OverLimitError, match="expected room for the dataset"):
            await recorder.add(part)
    await recorder.end("failed")
    await recorder.close()
    assert minari.MinariDataset(folder / "data").total_episodes == 0
