"""What the machine lacks: memory, room in the object store and on the disk, ports, files, a cluster, a true clock.

What can only be caused by those who may change the machine is left out elsewhere, and says so.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

import psutil
import pytest
from pools import adds_up, pool_of, sample
from ray_clusters import PATIENT, free_port
from support import equal, raises, server_environment

import rollserve
from rollserve import Reason
from rollserve_server.agents import RandomSpec
from rollserve_server.errors import WorkerLostError
from rollserve_server.local import LocalServer, local_server
from rollserve_server.pool import AtLeast, Exactly, Fragments, InProcessBackend
from rollserve_server.pool.backends.ray.backend import RayBackend

SERVER = Path(sys.executable).with_name("rollserve-server")
RAY = Path(sys.executable).with_name("ray")
LIGHT = ("--env", "CartPole-v1", "--backend", "in-process", "--workers", "1", "--rows", "2")
MIB = 1 << 20


def run(
    *arguments: str | Path, before: Callable[[], None] | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*arguments, "--listen", "127.0.0.1:0"] if "--listen" not in arguments else arguments,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **environment},
        preexec_fn=before,
    )


def in_namespace(*mounts: str) -> list[str]:
    """What to put before a command, so that small file systems are mounted for it alone: `FOLDER=BYTES`."""
    commands = ["mount --make-rprivate /"]
    for mount in mounts:
        folder, num_bytes = mount.split("=")
        commands.append(f"mount -t tmpfs -o size={num_bytes} tmpfs {folder}")
    prefix = ["unshare", "--mount", "sh", "-c", f'{" && ".join(commands)} && exec "$@"', "sh"]
    if not shutil.which("unshare") or subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode:
        pytest.skip("nobody may mount file systems here: that takes root, and a container that allows it")
    return prefix


# Memory


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A group of processes that may have 256 MiB together."""
    for parent, limit in (("memory", "memory.limit_in_bytes"), ("", "memory.max")):
        folder = Path("/sys/fs/cgroup", parent, f"rollserve-test-{os.getpid()}")
        with contextlib.suppress(OSError):
            folder.mkdir()
            try:
                (folder / limit).write_text(str(256 * MIB))
            except OSError:
                folder.rmdir()
                continue
            break
    else:
        pytest.skip(
            "nobody may make groups of limited memory here: that takes root, and cgroups that can be written to"
        )
    yield folder
    deadline = time.monotonic() + 10
    while folder.exists() and time.monotonic() < deadline:
        with contextlib.suppress(OSError):  # its processes are still ending
            folder.rmdir()
        time.sleep(0.05)


async def test_a_worker_that_the_kernel_ends_for_memory_is_replaced(
    ray_backend: RayBackend, small_group: Path, tmp_path: Path
) -> None:
    flag = tmp_path / "flag"
    kwargs = {"flag": str(flag), "group": str(small_group)}
    env = rollserve.EnvSpec("sample_envs:Greedy", kwargs)
    async with pool_of(ray_backend, env, allow_module=("sample_envs",)) as pool:
        await pool.update_agent([RandomSpec()])
        reference = await sample(pool, AtLeast(400), seed=5)
        flag.touch()
        batch = await sample(pool, AtLeast(400), seed=5)
    assert not flag.exists()
    assert equal(batch, reference)
    assert batch.account is not None
    assert batch.account.num_retried_episodes > 0
    assert adds_up(batch.account)


async def test_an_episode_that_takes_the_memory_of_every_worker_fails_its_call(
    ray_backend: RayBackend, small_group: Path, tmp_path: Path
) -> None:
    flag = tmp_path / "flag"
    kwargs = {"flag": str(flag), "group": str(small_group), "goes_on": True}
    env = rollserve.EnvSpec("sample_envs:Greedy", kwargs)
    async with pool_of(ray_backend, env, workers=1, allow_module=("sample_envs",)) as pool:
        await pool.update_agent([RandomSpec()])
        flag.touch()
        with raises(WorkerLostError, reason=Reason.WORKER_LOST_AGAIN, match=r"kernel.* memory .*episode \d"):
            await sample(pool, AtLeast(400), seed=5)
        flag.unlink()
        assert (await sample(pool, AtLeast(400), seed=5)).num_steps >= 400


def test_a_worker_that_ray_ends_for_memory_is_told_of() -> None:
    shown = run(
        *(SERVER, "--env", "CartPole-v1", "--workers", "1", "--start-seconds", "20"),
        RAY_memory_usage_threshold="0.001",
        RAY_memory_monitor_refresh_ms="50",
    )
    assert shown.returncode == 1, shown.stderr
    assert re.search(r"worker 0 .*\bRay\b.* memory\b", shown.stderr), shown.stderr


# The object store


def test_a_full_object_store_ends_calls_and_nothing_else(tmp_path: Path) -> None:
    kwargs = json.dumps({"observation_bytes": MIB, "length": 20})
    options = ["--env", "sample_envs:Big", "--env-kwargs", kwargs, "--workers", "2", "--rows", "2"]
    # Ray takes the disk to be full, and so has nowhere to go.
    no_disk = {"RAY_automatic_object_spilling_enabled": "0", "RAY_local_fs_capacity_threshold": "0.0"}
    log = tmp_path / "log"
    with (
        local_server(
            *(*options, "--object-store-bytes", str(80 * MIB)), log=log, environment={**server_environment(), **no_disk}
        ) as server,
        rollserve.connect(server.address) as sampler,
        contextlib.ExitStack() as slow,
    ):
        sampler.update_agent(rollserve.RandomAgent())
        reference = sampler.obtain_samples(40, seed=0)
        streams = [slow.enter_context(sampler.stream_samples(200, seed=seed)) for seed in range(1, 4)]
        errors = list(errors_of(streams, num_messages=1))  # after which no client takes any, and the store fills
        errors += errors_of(streams, num_messages=1000)
        assert errors
        assert {error.reason for error in errors} == {Reason.OBJECT_STORE_FULL}
        assert all("--object-store-bytes" in error.message for error in errors)
        slow.close()

        def has_room_again() -> bool:  # Ray takes a moment
            with contextlib.suppress(rollserve.LimitError):
                return equal(sampler.obtain_samples(40, seed=0), reference)
            return False

        wait_for(has_room_again)
        assert all(worker.healthy for worker in sampler.status().workers)
    text = log.read_text()
    assert "results may not fit into the object store" in text
    assert "Traceback" not in text


def errors_of(streams: Iterable[rollserve.SampleStream], num_messages: int) -> Iterator[rollserve.LimitError]:
    """Takes so many messages of each, and gives the errors that end them instead."""
    for stream in streams:
        try:
            list(itertools.islice(stream, num_messages))
        except rollserve.LimitError as error:
            yield error


def test_too_little_shared_memory_is_told_in_the_log(tmp_path: Path) -> None:
    prefix = in_namespace(f"/dev/shm={64 * MIB}")
    with serving(
        *prefix, SERVER, "--env", "CartPole-v1", "--workers", "1", "--log-json", log=tmp_path / "log"
    ) as lines:
        pass
    events = [json.loads(line) for line in lines()]  # also what Ray says
    assert any(event["level"] == "WARNING" and "/dev/shm" in event["event"] for event in events), events


# The disk


def test_a_log_that_cannot_be_written_stops_nothing() -> None:
    with tempfile.TemporaryDirectory() as folder, Path("/dev/full").open("w") as full:
        port_file = Path(folder, "port")
        command = [SERVER, *LIGHT, "--listen", "127.0.0.1:0", "--port-file", port_file]
        process = subprocess.Popen(command, stderr=full)
        wait_for(port_file.exists)
        with rollserve.connect(f"127.0.0.1:{port_file.read_text().strip()}") as sampler:
            sampler.update_agent(rollserve.RandomAgent())
            assert sampler.obtain_samples(100).num_steps >= 100
            with raises(rollserve.InvalidArgumentError, reason=Reason.ENV_NOT_FOUND):  # which is logged
                sampler.update_env("Nope-v0")
            assert sampler.status().policy_version == 1
        process.terminate()
        assert process.wait(30) == 0


def test_a_port_file_that_does_not_fit_on_the_disk(tmp_path: Path) -> None:
    def without_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    path = tmp_path / "port"
    shown = run(SERVER, *LIGHT, "--port-file", path, before=without_room)
    assert shown.returncode == 1
    assert re.search(f"cannot serve error='port_file: .*{path}.*{os.strerror(errno.EFBIG)}", shown.stderr)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("full", [False, True], ids=["not a folder", "full"])
def test_no_room_for_ray_on_the_disk(full: bool, tmp_path: Path) -> None:
    folder = tmp_path / "ray-files"
    folder.mkdir()
    if full:
        shown = run(*in_namespace(f"{folder}={MIB}"), SERVER, "--env", "CartPole-v1", RAY_TMPDIR=str(folder))
        expected = str(16 * MIB)
    else:
        (folder / "ray").touch()
        shown = run(SERVER, "--env", "CartPole-v1", RAY_TMPDIR=str(folder))
        expected = os.strerror(errno.EEXIST)
    assert shown.returncode == 1
    assert re.search(f"cannot serve .*{folder}/ray.*{expected}.*RAY_TMPDIR", shown.stderr), shown.stderr


# Ports and files


def test_a_port_that_is_taken_leaves_nothing_behind(tmp_path: Path) -> None:
    """Also of Ray, which has started by then."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        command = [SERVER, "--env", "CartPole-v1", "--workers", "1", "--listen", f"127.0.0.1:{taken.getsockname()[1]}"]
        with (tmp_path / "log").open("w") as log:
            process = subprocess.Popen(command, stderr=log)
        processes: set[psutil.Process] = set()
        while process.poll() is None:
            with contextlib.suppress(psutil.NoSuchProcess):
                processes.update(psutil.Process(process.pid).children(recursive=True))
            time.sleep(0.1)
    assert process.returncode == 1
    assert "cannot serve error='listen: " in (tmp_path / "log").read_text().splitlines()[-1]
    assert len(processes) > 2
    assert_gone(processes)


def test_more_connections_than_files_may_be_open(tmp_path: Path) -> None:
    with local_server(*LIGHT, log=tmp_path / "log") as server, rollserve.connect(server.address) as sampler:
        sampler.update_agent(rollserve.RandomAgent())
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (120, 120))
        host, port = server.address.split(":")
        with contextlib.ExitStack() as stack:
            for _ in range(200):
                stack.enter_context(socket.create_connection((host, int(port)), timeout=5))
            assert sampler.obtain_samples(100).num_steps >= 100
        with rollserve.connect(server.address, timeout=30) as other:
            assert other.obtain_samples(100).num_steps >= 100


# Ray's cluster


class Cluster:
    """A cluster of Ray of its own, of processes that are ended with it.

    Attributes:
        folder: of its files.
        address: where its head listens.
        nodes: the processes that stand for its machines, the head first.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = f"127.0.0.1:{free_port()}"
        self.nodes: list[subprocess.Popen[bytes]] = []
        client_port = f"--ray-client-server-port={free_port()}"  # not that of another test's cluster
        self.add_node("--head", "--port", self.address.rpartition(":")[2], client_port, "--include-dashboard=false")
        wait_for(self._answers)

    def add_node(self, *options: str) -> subprocess.Popen[bytes]:
        # Names of sockets have to be short.
        folder = tempfile.mkdtemp(prefix="rs", dir=self.folder)
        command = [RAY, "start", "--block", "--disable-usage-stats", "--temp-dir", folder, *options]
        command += ["--node-ip-address", "127.0.0.1", "--object-store-memory", str(80 * MIB)]
        # A machine that is lost is missed soon.
        soon = {"RAY_health_check_period_ms": "500", "RAY_health_check_failure_threshold": "10"}
        environment = {**os.environ, **server_environment(), **PATIENT, **soon, "RAY_AUTH_MODE": "disabled"}
        with (self.folder / "log").open("ab") as log:
            node = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        self.nodes.append(node)
        return node

    def kill(self, node: subprocess.Popen[bytes] | None = None) -> None:
        """Kills a node, or all, with everything that it has started."""
        for each in self.nodes if node is None else [node]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(each.pid)
                for one in (process, *process.children(recursive=True)):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        one.kill()
            each.wait(30)

    def _answers(self) -> bool:
        assert self.nodes[0].poll() is None, (self.folder / "log").read_text()
        host, _, port = self.address.rpartition(":")
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1):
            return True
        return False


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A head, and a machine with two cores beside it."""
    with tempfile.TemporaryDirectory(prefix="rs", ignore_cleanup_errors=True) as folder:
        its = Cluster(Path(folder))
        try:
            its.add_node("--address", its.address, "--num-cpus", "2", "--resources", '{"here": 2}')
            yield its
        finally:
            its.kill()


def on(cluster: Cluster, log: Path, *options: str) -> contextlib.AbstractContextManager[LocalServer]:
    """A server whose workers run in the cluster."""
    options = ("--ray-address", cluster.address, "--env", "sample_envs:Slow", "--rows", "2", "--workers", "2", *options)
    return local_server(*options, log=log, environment={**server_environment(), "RAY_AUTH_MODE": "disabled"})


@pytest.mark.parametrize("own", [True, False], ids=["of its own", "elsewhere"])
def test_a_cluster_that_is_lost_ends_the_server(own: bool, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with contextlib.ExitStack() as stack:
        if own:
            options = ("--env", "sample_envs:Slow", "--rows", "2", "--workers", "2")
            server = stack.enter_context(local_server(*options, log=log, environment=server_environment()))
            started = psutil.Process(server.process.pid).children(recursive=True)
        else:
            cluster = request.getfixturevalue("cluster")
            server, started = stack.enter_context(on(cluster, log)), []
        sampler = stack.enter_context(rollserve.connect(server.address, timeout=5))
        sampler.update_agent(rollserve.RandomAgent())
        stream = iter(stack.enter_context(sampler.stream_samples(10_000)))
        next(stream)
        began = time.monotonic()
        if own:
            next(process for process in started if process.name() == "raylet").kill()
        else:
            cluster.kill()
        with pytest.raises(rollserve.UnavailableError):
            for _ in stream:
                pass
        with pytest.raises(rollserve.UnavailableError):
            sampler.status()
        assert server.process.wait(30) == 1
        assert time.monotonic() - began < 30  # Ray itself waits for 60 s
    assert_gone(started)
    text = log.read_text()
    assert re.search("backend lost error=.*Ray", text), text
    assert "Traceback" not in text


def test_workers_of_a_machine_that_is_lost_are_replaced_on_another(cluster: Cluster, tmp_path: Path) -> None:
    log = tmp_path / "log"
    resources = ("--worker-resources", '{"here": 1}')
    with on(cluster, log, *resources) as server, rollserve.connect(server.address) as sampler:
        sampler.update_agent(rollserve.RandomAgent())
        reference = sampler.obtain_samples(100, seed=3)
        before = {worker.process_id for worker in sampler.status().workers}
        first = cluster.nodes[-1]
        cluster.add_node("--address", cluster.address, "--num-cpus", "2", "--resources", '{"here": 2}')
        with sampler.stream_samples(100, seed=3) as stream:
            parts = [next(iter(stream))]
            cluster.kill(first)
            parts += stream
        assert equal(rollserve.EpisodeBatch.concatenate(*parts), reference)
        wait_for(lambda: all(worker.healthy for worker in sampler.status().workers))
        assert before.isdisjoint(worker.process_id for worker in sampler.status().workers)
        assert equal(sampler.obtain_samples(100, seed=3), reference)


# The clock


async def test_a_clock_that_jumps_changes_nothing_in_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pool_of(InProcessBackend(), progress_seconds=0.2) as pool:
        await pool.update_agent([RandomSpec()])
        requests = (AtLeast(300), Exactly(3), Fragments(400))
        references = [await sample(pool, target, seed=seed) for seed, target in enumerate(requests)]
        jumps, true_time = itertools.cycle((86400.0, -86400.0)), time.time
        monkeypatch.setattr(time, "time", lambda: true_time() + next(jumps))
        began = time.monotonic()
        for seed, (target, reference) in enumerate(zip(requests, references, strict=True)):
            batch = await sample(pool, target, seed=seed)
            assert equal(batch, reference)
            account = batch.account
            assert account is not None
            assert adds_up(account)
            assert 0 <= account.queued_seconds <= account.queued_seconds + account.elapsed_seconds < 60
            assert all(0 <= worker.sampling_seconds < 60 for worker in account.workers)
        assert pool.status().uptime_seconds < time.monotonic() - began + 60


def test_a_clock_that_jumps_changes_nothing_in_a_server(tmp_path: Path) -> None:
    environment = server_environment()
    environment["PYTHONPATH"] = f"{Path(__file__).parent / 'jumping_clock'}{os.pathsep}{environment['PYTHONPATH']}"
    with (
        local_server(*LIGHT, log=tmp_path / "log", environment=environment) as server,
        rollserve.connect(server.address) as sampler,
    ):
        version = sampler.update_agent(rollserve.RandomAgent())
        batch = sampler.obtain_samples(300, seed=1, timeout=10)
        assert equal(sampler.obtain_samples(300, seed=1), batch)
        assert len(sampler.evaluate(3).returns) == 3
        assert sampler.status().counters.uptime_seconds < 120
        (updated,) = (each.updated for each in sampler.agent_versions() if each.policy_version == version)
        assert abs(updated.timestamp() - time.time()) < 2 * 86400  # of all, only what tells the time of day may jump
        assert server.stop() == 0


# What tests need


@contextlib.contextmanager
def serving(*command: str | Path, log: Path) -> Iterator[Callable[[], list[str]]]:
    """A server from its start to its end; gives what tells the lines of its log."""

    def lines() -> list[str]:
        return log.read_text().splitlines()

    with log.open("w") as file:
        process = subprocess.Popen([*command, "--listen", "127.0.0.1:0"], stderr=file)
    try:
        wait_for(lambda: process.poll() is not None or any("serving" in line for line in lines()))
        assert process.poll() is None, log.read_text()
        yield lines
    finally:
        process.terminate()
        assert process.wait(30) == 0


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def assert_gone(processes: Collection[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(list(processes), timeout=10)
    assert not [each for each in alive if each.status() != psutil.STATUS_ZOMBIE]
