"""Limits of the machine: memory, the object store, the disk, ports, open files, the Ray cluster, and the clock.

Tests that need root skip themselves without it.
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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
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
from rollserve_server.pool import AtLeast, Backend, Exactly, Fragments, InProcessBackend

SERVER = Path(sys.executable).with_name("rollserve-server")
RAY = Path(sys.executable).with_name("ray")
LIGHT = ("--env", "CartPole-v1", "--backend", "in-process", "--workers", "1", "--rows", "2")
MIB = 1 << 20
SPILLING = (
    *("--env", "sample_envs:FrameStacks-v0", "--backend", "in-process", "--workers", "1", "--rows", "2"),
    *("--native-rows", "2", "--worker-buffer-bytes", str(MIB), "--worker-spill-bytes", str(1 << 30)),
)
"""A server that spills fragments of a few hundred steps."""
EACH_KIND = pytest.mark.parametrize("kind", [pytest.param("rows", marks=pytest.mark.slow), "native"])
MANY_STEPS = 4000
WITHOUT_LINES = Path(__file__).parents[1] / "helpers" / "without_lines"


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
    """Return a command prefix that mounts small file systems, each `FOLDER=BYTES`, for one process alone."""
    commands = ["mount --make-rprivate /"]
    for mount in mounts:
        folder, num_bytes = mount.split("=")
        commands.append(f"mount -t tmpfs -o size={num_bytes} tmpfs {folder}")
    prefix = ["unshare", "--mount", "sh", "-c", f'{" && ".join(commands)} && exec "$@"', "sh"]
    if not shutil.which("unshare") or subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode:
        pytest.skip("mounting file systems needs root, and a container that allows it")
    return prefix


# Memory


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A cgroup whose processes may use 256 MiB together."""
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
        pytest.skip("limiting the memory of processes needs root, and writable cgroups")
    yield folder
    deadline = time.monotonic() + 10
    while folder.exists() and time.monotonic() < deadline:
        with contextlib.suppress(OSError):  # its processes are still ending
            folder.rmdir()
        time.sleep(0.05)


async def test_worker_killed_by_the_kernel_for_memory_is_replaced(
    ray_backend: Backend, small_group: Path, tmp_path: Path
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
    assert batch.account.num_retried_episodes > 0
    assert adds_up(batch.account)


@pytest.mark.slow
async def test_call_fails_if_an_episode_takes_the_memory_of_every_worker(
    ray_backend: Backend, small_group: Path, tmp_path: Path
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


@pytest.mark.slow
def test_server_logs_that_ray_killed_a_worker_for_memory() -> None:
    shown = run(
        *(SERVER, "--env", "CartPole-v1", "--workers", "1", "--start-seconds", "20"),
        RAY_memory_usage_threshold="0.001",
        RAY_memory_monitor_refresh_ms="50",
    )
    assert shown.returncode == 1, shown.stderr
    assert re.search(r"worker 0 .*\bRay\b.* memory\b", shown.stderr), shown.stderr


# The object store


@pytest.mark.slow
def test_full_object_store_ends_calls_and_loses_no_worker(tmp_path: Path) -> None:
    kwargs = json.dumps({"observation_bytes": MIB, "length": 20})
    options = ["--env", "sample_envs:Big", "--env-kwargs", kwargs, "--workers", "2", "--rows", "2"]
    # Ray must not spill to the disk, and results have to go through its object store.
    no_disk = {"RAY_automatic_object_spilling_enabled": "0", "RAY_local_fs_capacity_threshold": "0.0"}
    environment = {**server_environment(), **no_disk}
    environment["PYTHONPATH"] = f"{WITHOUT_LINES}:{environment['PYTHONPATH']}"
    log = tmp_path / "log"
    with (
        local_server(*(*options, "--object-store-bytes", str(80 * MIB)), log=log, environment=environment) as server,
        rollserve.connect(server.address) as sampler,
        contextlib.ExitStack() as slow,
    ):
        sampler.update_agent(rollserve.RandomAgent())
        reference = sampler.obtain_samples(40, seed=0)
        streams = [slow.enter_context(sampler.stream_samples(200, seed=seed)) for seed in range(1, 4)]
        errors = list(errors_of(streams, num_messages=1))  # then no client reads, and the store fills
        errors += errors_of(streams, num_messages=1000)
        assert errors
        assert {error.reason for error in errors} == {Reason.OBJECT_STORE_FULL}
        assert all("--object-store-bytes" in error.message for error in errors)
        slow.close()

        def has_room_again() -> bool:  # Ray frees memory with a delay
            with contextlib.suppress(rollserve.LimitError):
                return equal(sampler.obtain_samples(40, seed=0), reference)
            return False

        wait_for(has_room_again)
        assert all(worker.healthy for worker in sampler.status().workers)
    text = log.read_text()
    assert re.search("WARNING .*object_store_bytes=", text)
    assert "Traceback" not in text


def errors_of(streams: Iterable[rollserve.SampleStream], num_messages: int) -> Iterator[rollserve.LimitError]:
    """Read this many messages of each stream, and yield the errors that end streams earlier."""
    for stream in streams:
        try:
            list(itertools.islice(stream, num_messages))
        except rollserve.LimitError as error:
            yield error


@pytest.mark.slow
def test_server_warns_of_too_little_shared_memory(tmp_path: Path) -> None:
    prefix = in_namespace(f"/dev/shm={64 * MIB}")
    with serving(
        *prefix, SERVER, "--env", "CartPole-v1", "--workers", "1", "--log-json", log=tmp_path / "log"
    ) as lines:
        pass
    events = [json.loads(line) for line in lines()]  # messages of Ray among them
    assert any(event["level"] == "WARNING" and "/dev/shm" in event["event"] for event in events), events


# The disk


def test_server_runs_without_room_for_its_log() -> None:
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


def test_server_does_not_start_without_room_for_its_port_file(tmp_path: Path) -> None:
    def without_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    path = tmp_path / "port"
    shown = run(SERVER, *LIGHT, "--port-file", path, before=without_room)
    assert shown.returncode == 1
    assert re.search(f"cannot serve error='port_file: .*{path}.*{os.strerror(errno.EFBIG)}", shown.stderr)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("full", [False, True], ids=["not a folder", "full"])
def test_server_does_not_start_without_room_for_the_files_of_ray(full: bool, tmp_path: Path) -> None:
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


def test_server_names_a_folder_of_ray_that_is_no_ascii(tmp_path: Path) -> None:
    shown = run(SERVER, "--env", "CartPole-v1", TMPDIR=str(tmp_path / "zwölf"), RAY_TMPDIR="")
    assert shown.returncode == 1
    assert re.search("cannot serve .*zwölf/ray: expected a path of ASCII characters.*RAY_TMPDIR", shown.stderr)


@pytest.mark.slow
def test_server_names_gpus_that_this_machine_lacks() -> None:
    shown = run(SERVER, "--env", "CartPole-v1", "--workers", "1", "--worker-num-gpus", "64")
    assert shown.returncode == 2
    assert re.search("cannot serve error='worker_num_gpus: expected at most .* on this machine, got 64'", shown.stderr)


@pytest.mark.slow
def test_server_tells_of_a_cluster_that_does_not_answer_in_time() -> None:
    address = f"127.0.0.1:{free_port()}"
    began = time.monotonic()
    shown = run(SERVER, "--env", "CartPole-v1", "--ray-address", address, "--start-seconds", "4")
    assert time.monotonic() - began < 60  # Ray itself tries for minutes
    assert shown.returncode == 1
    assert re.search(
        rf"cannot serve error='ray_address: .* 4 s \(--start-seconds\), got none at {address}'", shown.stderr
    )


@EACH_KIND
def test_full_disk_ends_fragment_calls_that_spill_and_leaves_nothing(kind: str, tmp_path: Path) -> None:
    folder, port_file = tmp_path / "spilled", tmp_path / "port"
    folder.mkdir()
    options = (*SPILLING, "--vectorization", kind, "--port-file", port_file)
    command = [*in_namespace(f"{folder}={MIB}"), SERVER, *options]
    with (
        serving(*command, log=tmp_path / "log", environment={**server_environment(), "TMPDIR": str(folder)}) as lines,
        rollserve.connect(f"127.0.0.1:{port_file.read_text().strip()}") as sampler,
    ):
        (process,) = (worker.process_id for worker in sampler.status().workers)
        disk = f"/proc/{process}/root{folder}"
        assert os.statvfs(disk).f_blocks * os.statvfs(disk).f_bsize == MIB
        check_calls_around_failed_spill(sampler, folder, errno.ENOSPC)
        # All room is there again, without the call that fails.
        wait_for(lambda: os.statvfs(disk).f_bfree == os.statvfs(disk).f_blocks)
    assert not any("Traceback" in line for line in lines())


@EACH_KIND
def test_fragment_calls_spill_again_once_files_may_grow(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "spilled"
    folder.mkdir()
    environment = {**server_environment(), "TMPDIR": str(folder)}
    with (
        local_server(*SPILLING, "--vectorization", kind, log=tmp_path / "log", environment=environment) as server,
        rollserve.connect(server.address) as sampler,
    ):
        _, unlimited = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (MIB, unlimited))
        check_calls_around_failed_spill(sampler, folder, errno.EFBIG)
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (unlimited, unlimited))
        assert sampler.obtain_fragments(MANY_STEPS).num_steps == MANY_STEPS
        assert list(folder.iterdir()) == []


def check_calls_around_failed_spill(sampler: rollserve.Sampler, folder: Path, code: int) -> None:
    """Check that a call fails whose steps cannot be spilled, and that others are as if it had never been made."""
    sampler.update_agent(rollserve.RandomAgent())
    first, second = sampler.obtain_fragments(80, seed=1), sampler.obtain_fragments(40, seed=1, row_step_count=40)
    assert equal(sampler.obtain_fragments(80, seed=1), first)
    (worker,) = sampler.status().workers
    with raises(
        rollserve.LimitError,
        field="step_count",
        reason=Reason.FRAGMENTS_TOO_LARGE,
        quotes=(str(MANY_STEPS), folder.name, os.strerror(code)),
    ):
        sampler.obtain_fragments(MANY_STEPS, seed=1, row_step_count=40)
    assert list(folder.iterdir()) == []
    assert equal(sampler.obtain_fragments(40, seed=1, row_step_count=40), second)
    (after,) = sampler.status().workers
    assert after.healthy
    assert (after.process_id, after.num_restarts) == (worker.process_id, worker.num_restarts)


# Ports and files


@pytest.mark.slow
def test_server_leaves_no_process_behind_if_its_port_is_taken_while_ray_starts(tmp_path: Path) -> None:
    address, processes = ("127.0.0.1", free_port()), set[psutil.Process]()
    with socket.socket() as taken:
        command = [SERVER, "--env", "CartPole-v1", "--workers", "1", "--listen", f"{address[0]}:{address[1]}"]
        with (tmp_path / "log").open("w") as log:
            process = subprocess.Popen(command, stderr=log)
        while process.poll() is None:
            with contextlib.suppress(psutil.NoSuchProcess):
                is_first = not processes
                processes.update(psutil.Process(process.pid).children(recursive=True))
                if is_first and processes:
                    taken.bind(address)
                    taken.listen()
            time.sleep(0.1)
    assert process.returncode == 1
    assert "cannot serve error='listen: " in (tmp_path / "log").read_text().splitlines()[-1]
    assert len(processes) > 2
    assert_gone(processes)


def test_server_survives_more_connections_than_it_may_open_files(tmp_path: Path) -> None:
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


@pytest.mark.slow
def test_server_keeps_its_cluster_while_it_may_open_no_more_files(tmp_path: Path) -> None:
    options = ("--env", "CartPole-v1", "--workers", "1", "--rows", "2")
    with local_server(*options, log=tmp_path / "log") as server, rollserve.connect(server.address) as sampler:
        sampler.update_agent(rollserve.RandomAgent())
        num_open = len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (num_open + 60, num_open + 60))
        host, port = server.address.split(":")
        with contextlib.ExitStack() as stack:
            for _ in range(300):
                stack.enter_context(socket.create_connection((host, int(port)), timeout=5))
            time.sleep(8)
            assert server.process.poll() is None
        assert sampler.obtain_samples(100).num_steps >= 100
        assert "cluster is lost" not in (tmp_path / "log").read_text()


# Ray's cluster


class Cluster:
    """A Ray cluster on this machine.

    Attributes:
        folder: folder of its files.
        address: address of the head, `host:port`.
        nodes: a process for each node, the head first.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = f"127.0.0.1:{free_port()}"
        self.nodes: list[subprocess.Popen[bytes]] = []
        client_port = f"--ray-client-server-port={free_port()}"  # other clusters have the default
        self.add_node("--head", "--port", self.address.rpartition(":")[2], client_port, "--include-dashboard=false")
        wait_for(self._answers)

    def add_node(self, *options: str) -> subprocess.Popen[bytes]:
        # Names of sockets have to be short.
        folder = tempfile.mkdtemp(prefix="rs", dir=self.folder)
        command = [RAY, "start", "--block", "--disable-usage-stats", "--temp-dir", folder, *options]
        command += ["--node-ip-address", "127.0.0.1", "--object-store-memory", str(80 * MIB)]
        # Ray notices the loss of a node within 5 s.
        soon = {"RAY_health_check_period_ms": "500", "RAY_health_check_failure_threshold": "10"}
        environment = {**os.environ, **server_environment(), **PATIENT, **soon, "RAY_AUTH_MODE": "disabled"}
        with (self.folder / "log").open("ab") as log:
            node = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        self.nodes.append(node)
        return node

    def kill(self, node: subprocess.Popen[bytes] | None = None) -> None:
        """Kill a node, or all nodes, with all their processes."""
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
    """A head, and a node with two cores."""
    with tempfile.TemporaryDirectory(prefix="rs", ignore_cleanup_errors=True) as folder:
        running = Cluster(Path(folder))
        try:
            running.add_node("--address", running.address, "--num-cpus", "2", "--resources", '{"here": 2}')
            yield running
        finally:
            running.kill()


def on(cluster: Cluster, log: Path, *options: str) -> contextlib.AbstractContextManager[LocalServer]:
    """A server whose workers run in the cluster."""
    options = ("--ray-address", cluster.address, "--env", "sample_envs:Slow", "--rows", "2", "--workers", "2", *options)
    return local_server(*options, log=log, environment={**server_environment(), "RAY_AUTH_MODE": "disabled"})


@pytest.mark.slow
@pytest.mark.parametrize("own", [True, False], ids=["own", "existing"])
def test_server_ends_when_its_cluster_is_lost(own: bool, request: pytest.FixtureRequest, tmp_path: Path) -> None:
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
        with pytest.raises(rollserve.UnavailableError):  # the server is stopping, or gone
            sampler.status(timeout=1)
        assert server.process.wait(30) == 1
        assert time.monotonic() - began < 30  # Ray itself waits for 60 s
    assert_gone(started)
    text = log.read_text()
    assert re.search("backend lost error=.*Ray", text), text
    assert "Traceback" not in text


@pytest.mark.slow
def test_workers_of_a_lost_node_are_replaced_on_another(cluster: Cluster, tmp_path: Path) -> None:
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


async def test_pool_ignores_jumps_of_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
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
            assert adds_up(account)
            assert 0 <= account.queued_seconds <= account.queued_seconds + account.elapsed_seconds < 60
            assert all(0 <= worker.sampling_seconds < 60 for worker in account.workers)
        assert pool.status().uptime_seconds < time.monotonic() - began + 60


def test_server_ignores_jumps_of_the_clock(tmp_path: Path) -> None:
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
        assert abs(updated.timestamp() - time.time()) < 2 * 86400  # the time of an update may jump
        assert server.stop() == 0


# Helpers


@contextlib.contextmanager
def serving(*command: str | Path, log: Path, environment: Mapping[str, str] = {}) -> Iterator[Callable[[], list[str]]]:
    """Run a server during the block; yields a function that reads the lines of its log."""

    def lines() -> list[str]:
        return log.read_text().splitlines()

    with log.open("w") as file:
        process = subprocess.Popen(
            [*command, "--listen", "127.0.0.1:0"], stderr=file, env={**os.environ, **environment}
        )
    try:
        served = re.compile(r' serving |"event": "serving"')
        wait_for(lambda: process.poll() is not None or any(map(served.search, lines())))
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
