"""Hosts: processes of their own that have environments, which workers start or dial."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
from rollserve_env_host.environments import Environment, environment_factory
from rollserve_env_host.real_time import RealTime
from rollserve_env_host.rows import Rows
from support import equal, raises, server_environment

import rollserve
from rollserve_server.local import LocalServer, local_server
from rollserve_wire.reasons import Reason
from rollserve_wire.rows.v1 import rows_pb2 as pb

ENVS = {
    "cartpole": "CartPole-v1",
    "pendulum": "Pendulum-v1",
    "lake": "FrozenLake-v1",
    "nested": "sample_envs:Nested",
    "hybrid": "sample_envs:Hybrid",
    "failing": "sample_envs:FailsForSomeSeeds",
}
PROFILES: dict[str, Any] = {name: {"env": env, "python": sys.executable} for name, env in ENVS.items()} | {
    "unknown": {"env": "NoSuch-v1", "python": sys.executable},
    "missing": {"env": "any", "command": ["/no/such/program"]},
    "ending": {"env": "any", "command": [sys.executable, "-c", "raise SystemExit('no display')"]},
    "mute": {"env": "any", "command": [sys.executable, "-c", "print('not a word of the protocol')"]},
    "tasks": {
        "env": "sample_envs:Tasks",
        "python": sys.executable,
        "arguments": {"properties": {"size": {"type": "integer"}}},
    },
}


@pytest.fixture(scope="module")
def place() -> str:
    """An address at which nobody listens yet."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


@contextlib.contextmanager
def serving(folder: Path, place: str, *options: str) -> Iterator[LocalServer]:
    options = ("--env", "CartPole-v1", "--vectorization", "rows", "--rows", "4", "--workers", "2", *options)
    options += ("--allow-module", "sample_envs", "--allow-host", f"rows://{place}", "--env-retries", "20")
    options += ("--profiles", json.dumps(PROFILES))
    with local_server(*options, log=folder / "server.log", environment=server_environment()) as running:
        yield running


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, place: str) -> Iterator[LocalServer]:
    with serving(tmp_path_factory.mktemp("hosts"), place, "--backend", "in-process") as running:
        yield running


@pytest.fixture
def sampler(server: LocalServer) -> Iterator[rollserve.Sampler]:
    with rollserve.connect(server.address) as connected:
        yield connected


def sampled(sampler: rollserve.Sampler, env: str, seed: int = 3) -> list[rollserve.EpisodeBatch]:
    sampler.update_env(rollserve.EnvSpec(env))
    sampler.update_agent(rollserve.RandomAgent())
    samples = sampler.obtain_samples(400, seed=seed)
    batches = [samples, sampler.obtain_fragments(64, seed=seed), sampler.obtain_exact_episodes(6, seed=seed)]
    return list(map(alone, batches))


def alone(batch: rollserve.EpisodeBatch) -> rollserve.EpisodeBatch:
    """A batch without what differs between updates to one environment."""
    return dataclasses.replace(
        batch, policy_versions=None, worker_indices=None, row_indices=None, observation_space=None, action_space=None
    )


@pytest.fixture
def listening(place: str) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """A function that starts a host at the address; it ends with the test."""
    started = []

    def start(env: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "rollserve_env_host", env, "--listen", place]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={**os.environ, **server_environment()}, process_group=0
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == f"listening on {place}\n"
        return process

    yield start
    for process in started:
        kill(process)


def kill(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


@pytest.mark.parametrize("name", [name for name in ENVS if name != "failing"])
def test_started_host_makes_the_same_episodes(sampler: rollserve.Sampler, name: str) -> None:
    expected = sampled(sampler, ENVS[name])
    assert all(map(equal, sampled(sampler, f"profile:{name}"), expected))


@pytest.mark.parametrize("name", ["cartpole", "nested"])
def test_dialled_host_makes_the_same_episodes(
    sampler: rollserve.Sampler, listening: Callable[[str], Any], place: str, name: str
) -> None:
    expected = sampled(sampler, ENVS[name])
    listening(ENVS[name])
    assert all(map(equal, sampled(sampler, f"rows://{place}"), expected))


def test_environment_that_fails_in_a_host_is_made_again(sampler: rollserve.Sampler) -> None:
    def failure(env: str) -> str:
        sampler.update_env(rollserve.EnvSpec(env))
        sampler.update_agent(rollserve.RandomAgent())
        with raises(rollserve.ServerError, reason=Reason.ENV_FAILED) as caught:
            sampler.obtain_exact_episodes(4, seed=7)  # of whose eight episodes one fails
        return str(caught.value)

    (found, text), (expected, plain) = (
        (text.partition(",")[0], text) for text in map(failure, ("profile:failing", ENVS["failing"]))
    )
    assert found == expected
    assert re.fullmatch(r"episode \d+ \(environment seed \d+\)", found)
    assert "the host" not in text
    assert ("broken by design" in text, "broken by design" in plain) == (True, True)


def test_arguments_and_tasks_reach_the_host(sampler: rollserve.Sampler) -> None:
    expected = []
    for spec in (
        rollserve.EnvSpec("sample_envs:Tasks", {"size": 7}),
        rollserve.EnvSpec("profile:tasks", {"size": 7}),
    ):
        sampler.update_env(spec)
        sampler.update_agent(rollserve.RandomAgent())
        expected.append(sampler.obtain_samples(50, seed=2))
    assert np.array_equal(*(batch.observations for batch in expected))
    assert set(expected[0].observations[:, 0].tolist()) == {7.0}


def children(server: LocalServer) -> list[psutil.Process]:
    """Processes of hosts that a server's workers have started."""
    found = psutil.Process(server.process.pid).children(recursive=True)
    return [each for each in found if is_host(each)]


def is_host(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return "rollserve_env_host" in " ".join(process.cmdline())
    return False


def test_started_hosts_that_are_killed_change_nothing(sampler: rollserve.Sampler, server: LocalServer) -> None:
    sampler.update_env("profile:pendulum")
    sampler.update_agent(rollserve.RandomAgent())
    expected = [sampler.obtain_exact_episodes(24, seed=5), sampler.obtain_fragments(2_000, seed=5)]
    stop, killed = threading.Event(), list[int]()

    def kill_hosts() -> None:
        while not stop.wait(0.15):
            for host in children(server):
                with contextlib.suppress(psutil.Error):
                    if time.time() > host.create_time() + 1.5:  # it has begun
                        host.kill()
                        killed.append(host.pid)

    killer = threading.Thread(target=kill_hosts)
    killer.start()
    num_retried = 0
    try:
        while num_retried == 0 or len(killed) < 4:
            found = [sampler.obtain_exact_episodes(24, seed=5), sampler.obtain_fragments(2_000, seed=5)]
            assert all(map(equal, found, expected))
            num_retried += sum(batch.account.num_retried_episodes for batch in found)
    finally:
        stop.set()
        killer.join()


def test_dialled_host_that_comes_back_goes_on(
    sampler: rollserve.Sampler, listening: Callable[[str], subprocess.Popen[str]], place: str
) -> None:
    host = listening("Pendulum-v1")
    sampler.update_env(f"rows://{place}")
    sampler.update_agent(rollserve.RandomAgent())
    expected = sampler.obtain_exact_episodes(24, seed=5)
    with sampler.drive(seed=5) as session:
        session.observe()
        kill(host)
        listening("Pendulum-v1")
        session.step(np.zeros((8, 1), np.float32))
    found = sampler.obtain_exact_episodes(24, seed=5)
    assert equal(found, expected)


def test_rows_that_differ_have_a_host_each(sampler: rollserve.Sampler) -> None:
    specs = [rollserve.EnvSpec("profile:cartpole"), rollserve.EnvSpec("CartPole-v1")] * 2
    sampler.update_env(specs)
    sampler.update_agent(rollserve.RandomAgent())
    found = sampler.obtain_exact_episodes(8, seed=4)
    sampler.update_env(rollserve.EnvSpec("CartPole-v1"))
    assert equal(found, sampler.obtain_exact_episodes(8, seed=4))


def test_hosts_end_with_their_environment(sampler: rollserve.Sampler, server: LocalServer) -> None:
    sampler.update_env("profile:cartpole")
    sampler.update_agent(rollserve.RandomAgent())
    sampler.obtain_samples(10)
    assert children(server)
    sampler.update_env("CartPole-v1")
    sampler.obtain_samples(400)
    until = time.monotonic() + 30
    while children(server) and time.monotonic() < until:
        time.sleep(0.05)
    assert not children(server)


@pytest.mark.parametrize(
    ("env", "texts"),
    [
        ("profile:unknown", ["the host refuses: NameNotFound", "NoSuch"]),
        ("profile:missing", ["the host has closed the connection", "program: No such file or directory"]),
        ("profile:ending", ["the host has closed the connection", "no display"]),
        ("profile:mute", ["the host has closed the connection", "not a word of the protocol"]),
    ],
)
def test_hosts_that_do_not_begin_are_told(sampler: rollserve.Sampler, env: str, texts: list[str]) -> None:
    with raises(
        rollserve.InvalidArgumentError, field="all_workers.environment.id", reason=Reason.ENV_REFUSED
    ) as caught:
        sampler.update_env(env)
    assert all(text in str(caught.value) for text in texts)


def test_only_hosts_that_the_operator_allows_are_dialled(sampler: rollserve.Sampler, place: str) -> None:
    field, reason = "all_workers.environment.id", Reason.HOST_NOT_ALLOWED
    for env in ("rows://127.0.0.1:1", f"rows+tls://{place}", "rows://"):
        with raises(rollserve.InvalidArgumentError, field=field, reason=reason):
            sampler.update_env(env)
    with raises(rollserve.InvalidArgumentError, field=field, reason=Reason.ENV_REFUSED, match="refused"):
        sampler.update_env(f"rows://{place}")  # nobody listens


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("wrappers", {"wrappers": [rollserve.Wrapper("TimeLimit", {"max_episode_steps": 3})]}),
        ("vectorization", {"vectorization": "native"}),
    ],
)
def test_hosts_have_no_part_of_the_server_around_them(
    sampler: rollserve.Sampler, place: str, field: str, options: dict[str, Any]
) -> None:
    with raises(rollserve.InvalidArgumentError, field=f"all_workers.environment.{field}"):
        sampler.update_env(rollserve.EnvSpec(f"rows://{place}", **options))


Change = Callable[[pb.Request, pb.Response], "pb.Response | bytes | bytearray | None"]


def changed(kind: str, change: Callable[[Any], object]) -> Change:
    """Change answers of a kind before they are sent."""

    def apply(request: pb.Request, response: pb.Response) -> pb.Response:
        if request.WhichOneof("content") == kind:
            change(response)
        return response

    return apply


def _close_in_step(request: pb.Request, response: pb.Response) -> pb.Response | None:
    return None if request.WhichOneof("content") == "step" else response


def _widen(response: pb.Response) -> None:
    response.results.observations[0].tensor.shape.append(1)


BAD = {
    "another number": (changed("step", lambda response: setattr(response, "number", 1)), "number: expected"),
    "another answer": (changed("step", lambda response: response.made.SetInParent()), "response: expected results"),
    "no rewards": (changed("step", lambda response: response.results.ClearField("rewards")), "rewards: expected"),
    "too many flags": (changed("step", lambda each: each.results.terminated.append(True)), "terminated: expected"),
    "no observations": (
        changed("reset", lambda response: response.results.ClearField("observations")),
        "observations: expected 1 values, got 0",
    ),
    "another shape": (changed("reset", _widen), "observations: expected '', float32 of shape"),
    "another type": (
        changed("step", lambda response: setattr(response.results.observations[0].tensor, "data_type", 3)),
        "observations['']: data: expected",
    ),
    "infos of other rows": (
        changed("step", lambda response: response.results.infos.add(name="x", positions=[99]).json.texts.append("1")),
        "infos['x']: expected",
    ),
    "infos that are no JSON": (
        changed("step", lambda response: response.results.infos.add(name="x", positions=[0]).json.texts.append("{")),
        "infos['x']: Expecting",
    ),
    "failure of another row": (
        changed("step", lambda response: response.results.failures.add(position=99)),
        "failures: expected",
    ),
    "a refusal": (changed("step", lambda response: response.refusal.SetInParent()), "the host refuses"),
    "other bytes": (lambda _, response: b"\xff" * 9, "message: expected a Response"),
    "too many bytes": (
        lambda request, response: bytearray(struct.pack("<I", 1 << 28)) if request.HasField("step") else response,
        "message: expected at most",
    ),
    "its end": (_close_in_step, "the host has closed the connection"),
}


@contextlib.contextmanager
def bad_host(place: str, change: Change, hello: pb.Hello | None = None) -> Iterator[None]:
    """A host of CartPole whose answers are changed."""
    listener = socket.create_server(("127.0.0.1", int(place.rpartition(":")[2])))

    def serve(connection: socket.socket) -> None:
        rows = Rows(environment_factory("CartPole-v1"))
        with connection, contextlib.suppress(OSError, struct.error):
            send(connection, (hello or pb.Hello(protocol_version=1)).SerializeToString())
            while True:
                (length,) = struct.unpack("<I", connection.recv(4, socket.MSG_WAITALL))
                request = pb.Request.FromString(connection.recv(length, socket.MSG_WAITALL))
                answer = rows.answer(_as_hosts(request))
                response = change(request, pb.Response.FromString(answer.SerializeToString()))
                if response is None:
                    return
                if isinstance(response, bytearray):  # without the rest
                    connection.sendall(response)
                    return
                send(connection, response if isinstance(response, bytes) else response.SerializeToString())

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def _as_hosts(request: pb.Request) -> Any:
    from rollserve_env_host.messages import rows_pb2

    return rows_pb2.Request.FromString(request.SerializeToString())


def send(connection: socket.socket, data: bytes) -> None:
    connection.sendall(struct.pack("<I", len(data)) + data)


@pytest.mark.parametrize("kind", BAD)
def test_answers_that_do_not_fit_are_refused(sampler: rollserve.Sampler, place: str, kind: str) -> None:
    change, text = BAD[kind]
    with bad_host(place, change), raises(rollserve.InvalidArgumentError, reason=Reason.ENV_REFUSED) as caught:
        sampler.update_env(f"rows://{place}")
    assert text in str(caught.value)


def test_host_of_another_version_of_the_protocol_is_refused(sampler: rollserve.Sampler, place: str) -> None:
    hello = pb.Hello(protocol_version=9)
    text = "version 1 of the step protocol, got 9"
    with bad_host(place, lambda _, response: response, hello), raises(rollserve.InvalidArgumentError, match=text):
        sampler.update_env(f"rows://{place}")


def test_host_that_comes_back_with_another_environment_is_refused(
    sampler: rollserve.Sampler, listening: Callable[[str], subprocess.Popen[str]], place: str
) -> None:
    host = listening("CartPole-v1")
    sampler.update_env(f"rows://{place}")
    sampler.update_agent(rollserve.RandomAgent())
    sampler.obtain_samples(10, seed=1)
    kill(host)
    listening("Acrobot-v1")
    with raises(
        rollserve.ServerError, reason=Reason.ENV_FAILED, match="the spaces that it had|environment that the host had"
    ):
        sampler.obtain_samples(1_000, seed=2)
    sampler.update_env("CartPole-v1")  # before the host ends, which rows would wait for


def test_failure_of_a_row_is_that_rows_alone(sampler: rollserve.Sampler, place: str) -> None:
    failed = []

    def fail_once(request: pb.Request, response: pb.Response) -> pb.Response:
        if request.HasField("step") and not failed and len(response.results.rewards) > 2:
            failed.append(request.number)
            response.results.failures.add(position=2, text="a wheel has come off")
        return response

    sampler.update_env(rollserve.EnvSpec("CartPole-v1"))
    sampler.update_agent(rollserve.RandomAgent())
    expected = sampler.obtain_exact_episodes(12, seed=1)
    with bad_host(place, fail_once):
        sampler.update_env(f"rows://{place}")
        found = sampler.obtain_exact_episodes(12, seed=1)
        sampler.update_env("CartPole-v1")
    assert equal(found, expected)
    assert found.account.num_retried_episodes == 1


@pytest.mark.slow  # repeats on Ray what faster tests cover
def test_hosts_end_with_workers_of_ray(tmp_path: Path, place: str) -> None:
    with serving(tmp_path, place) as running, rollserve.connect(running.address) as sampler:
        expected = sampled(sampler, "CartPole-v1")
        assert all(map(equal, sampled(sampler, "profile:cartpole"), expected))
        hosts = [each for each in psutil.process_iter() if is_host(each) and each.parent().name() != "python"]
        workers = {host.parent() for host in hosts}
        assert len(hosts) >= 2
        for worker in workers:
            assert worker is not None
            worker.kill()
        psutil.wait_procs(hosts, timeout=30)
        assert not any(host.is_running() and host.status() != psutil.STATUS_ZOMBIE for host in hosts)
        assert all(map(equal, sampled(sampler, "profile:cartpole"), expected))


class Counter(gymnasium.Env[np.ndarray, int]):
    """Counts its steps, of which each gives its action as reward; the episode ends after 50."""

    observation_space = gymnasium.spaces.Box(0, np.inf, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(100)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self.num_steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.num_steps += 1
        return np.full(1, self.num_steps, np.float32), float(action), self.num_steps == 50, False, {}


def test_environment_in_real_time_goes_on_with_its_default_action() -> None:
    counter = Counter()
    env = RealTime(Environment(lambda: counter), 0.002, 3)
    assert env.is_nondeterministic
    env.reset(0, None)
    while counter.num_steps < 4:
        time.sleep(0.001)
    observation, reward, terminated, _, infos = env.step(50)
    assert observation[0] == infos["late_steps"] + 1
    assert reward == 3 * infos["late_steps"] + 50
    assert infos["late_steps"] >= 4
    assert not terminated
    assert abs(infos["host_seconds"] - time.time()) < 60
    while counter.num_steps < 50:
        time.sleep(0.001)
    observation, reward, terminated, _, infos = env.step(50)  # too late: the episode has ended
    assert (observation[0], terminated) == (50, True)
    assert reward == 3 * infos["late_steps"]
    env.reset(1, None)
    assert env.step(7)[0][0] >= 1
    env.close()
    with pytest.raises(ValueError, match="default action: expected"):
        RealTime(Environment(Counter), 1.0, [1, 2])


def test_rows_in_real_time_step_at_the_same_time(sampler: rollserve.Sampler, place: str) -> None:
    late = ("--step-seconds", "0.05", "--default-action", "[0.0]")
    command = [sys.executable, "-m", "rollserve_env_host", "Pendulum-v1", "--listen", place, *late]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        updated = sampler.update_env(rollserve.EnvSpec(f"rows://{place}", num_rows=8))
        assert updated.reproducibility is rollserve.Reproducibility.WORKER
        sampler.update_agent(rollserve.ConstantAgent([2.0]))
        batch = sampler.obtain_fragments(64)
        assert isinstance(batch.env_infos, dict)
        seconds = batch.env_infos["host_seconds"].reshape(16, 4)  # of rows of 4 steps each
        assert {"late_steps", "host_seconds"} <= batch.env_infos.keys()
        assert (np.diff(seconds, axis=1) > 0).all()
        assert np.ptp(seconds[:8], axis=0).max() < 8 * 0.05  # rows that waited for each other would be apart
    finally:
        kill(process)
