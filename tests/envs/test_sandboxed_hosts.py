"""Hosts behind a boundary: what they attempt fails, and what they may do has the same results as without one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from certificates import Certificates
from faults.test_journal import LastingBackend, pool_on
from hostile_envs import ATTEMPTS, LEFT
from pools import sample, settings
from principals import Tokens
from raw_calls import soon
from support import equal, raises, server_environment

import rollserve
from rollserve import EnvSpec, Reason
from rollserve_server.agents import RandomSpec
from rollserve_server.envs import HostStart, ProfileEnv
from rollserve_server.local import LocalServer, local_server
from rollserve_server.pool import AtLeast
from rollserve_server.settings import SandboxSetting

VARIABLE = "DATABASE_PASSWORD"
LIMITS = {"memory_bytes": 1 << 30, "processes": 32, "scratch_bytes": 16 << 20}
NAMESPACES = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--net", "--ipc", "--fork", "true"]

pytestmark = pytest.mark.skipif(
    not shutil.which("unshare") or bool(subprocess.run(NAMESPACES, capture_output=True, check=False).returncode),
    reason="the kernel allows no namespaces",
)


def left() -> list[psutil.Process]:
    """Return the processes that an environment has left behind."""
    return [each for each in psutil.process_iter(["cmdline"]) if each.info["cmdline"] == ["sleep", LEFT]]


def hosts(name: str) -> set[int]:
    """Return the processes of hosts with an environment of the tests."""
    found = psutil.process_iter(["cmdline"])
    return {each.pid for each in found if f"hostile_envs:{name}" in (each.info["cmdline"] or ())}


@pytest.fixture(scope="module")
def victim() -> Iterator[subprocess.Popen[bytes]]:
    """A process of the user that the server runs as."""
    program = "import hostile_envs, time; hostile_envs.let_others_trace(); print(flush=True); time.sleep(600)"
    environment = {**os.environ, **server_environment()}
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, victim: subprocess.Popen[bytes]
) -> Iterator[tuple[LocalServer, dict[str, Any]]]:
    """A server on Ray with secrets, and what a client needs to connect."""
    folder = tmp_path_factory.mktemp("hostile")
    certificates, tokens = Certificates(folder / "certificates"), Tokens(folder / "tokens.json")
    token = tokens.create("alice", "*")
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.socket(socket.AF_UNIX) as in_file,
    ):
        in_file.bind(str(folder / "socket"))
        in_file.listen()
        targets = {
            "read the TLS key": [str(certificates.path("server-key"))],
            "read the token file": [str(tokens.path)],
            "read the server's variables": [VARIABLE],
            "open a socket": [listener.getsockname()[1], str(folder / "socket")],
            "signal": [victim.pid],
            "trace": [victim.pid],
            "write outside": [str(folder)],
        }
        hostile = {
            "env": "hostile_envs:Hostile",
            "env_kwargs": {"targets": targets},
            "arguments": {"properties": {"server": {}, "row": {}}},
        }
        profiles = {
            "sandboxed": {**hostile, "sandbox": LIMITS},
            "free": {**hostile, "python": sys.executable},
            "hoarding": {"env": "hostile_envs:Hoarding", "sandbox": LIMITS},
            "counting": {"env": "hostile_envs:Counting", "sandbox": True},
            "drawing": {"env": "hostile_envs:Drawing", "sandbox": True},
            "drawing-free": {"env": "hostile_envs:Drawing", "python": sys.executable},
            "cartpole": {"env": "CartPole-v1", "sandbox": {"processors": 1}},
            "hidden": {"env": "hostile_envs:Drawing", "env_kwargs": {"hidden": __file__}, "sandbox": True},
            "shown": {"env": "hostile_envs:Drawing", "env_kwargs": {"hidden": __file__}, "python": sys.executable},
            "command": {"env": "none", "command": ["no-such-program"], "sandbox": True},
            "path": {"env": "CartPole-v1", "sandbox": {"paths": ["/no/such/path"]}},
        }
        options = ("--env", "CartPole-v1", "--workers", "1", "--rows", "2", "--vectorization", "rows")
        options += (*certificates.server, *tokens.options, "--profiles", json.dumps(profiles))
        environment = {**server_environment(), VARIABLE: "hush"}
        with local_server(*options, log=folder / "log", environment=environment) as running:
            yield running, {**certificates.ca, "token": token}


@pytest.fixture(scope="module")
def sampler(server: tuple[LocalServer, dict[str, Any]]) -> Iterator[rollserve.Sampler]:
    running, arguments = server
    with rollserve.connect(running.address, **arguments) as connected:
        connected.update_agent(rollserve.RandomAgent())
        yield connected


def succeeded(sampler: rollserve.Sampler, server: LocalServer, profile: str) -> set[str]:
    """Return the names of the attempts that succeed in an environment of two rows with a host each."""
    rows = [EnvSpec(f"profile:{profile}", {"server": server.process.pid, "row": row}) for row in range(2)]
    sampler.update_env(rows)
    batch = sampler.obtain_samples(1, seed=1)
    return {name for name, reward in zip(ATTEMPTS, batch.rewards, strict=False) if reward}


@pytest.fixture(scope="module")
def free(sampler: rollserve.Sampler, server: tuple[LocalServer, dict[str, Any]]) -> set[str]:
    """The attempts that succeed without a boundary."""
    return succeeded(sampler, server[0], "free")


@pytest.fixture(scope="module")
def sandboxed(sampler: rollserve.Sampler, server: tuple[LocalServer, dict[str, Any]]) -> set[str]:
    """The attempts that succeed behind the boundary."""
    return succeeded(sampler, server[0], "sandboxed")


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_attempt_fails_behind_the_boundary_alone(attempt: str, free: set[str], sandboxed: set[str]) -> None:
    assert attempt in free
    assert attempt not in sandboxed


def test_processes_that_take_too_much_memory_together_end(sampler: rollserve.Sampler) -> None:
    sampler.update_env("CartPole-v1")
    with raises(rollserve.RollserveError, quotes="HostLostError"):
        sampler.evaluate(1, env="profile:hoarding")
    assert soon(lambda: not hosts("Hoarding"))
    assert sampler.obtain_samples(20, seed=1).num_steps >= 20


def test_host_sees_its_own_processes_alone(sampler: rollserve.Sampler) -> None:
    sampler.update_env("profile:counting")
    assert set(sampler.obtain_samples(10, seed=1).rewards) == {2.0}


@pytest.mark.parametrize(("inside", "outside"), [("cartpole", "CartPole-v1"), ("drawing", "profile:drawing-free")])
def test_host_has_the_same_episodes_inside_as_outside(sampler: rollserve.Sampler, inside: str, outside: str) -> None:
    batches = []
    for env in (f"profile:{inside}", outside):
        sampler.update_env(env)
        batches.append(sampler.obtain_samples(100, seed=1))
    assert equal(*batches)


def test_host_does_not_see_the_working_folder(sampler: rollserve.Sampler) -> None:
    assert Path.cwd() in Path(__file__).parents
    sampler.update_env("profile:hidden")
    with raises(rollserve.InvalidArgumentError, reason=Reason.ENV_REFUSED, quotes="hidden: expected nothing there"):
        sampler.update_env("profile:shown")


def test_host_ends_with_a_worker_that_is_killed(sampler: rollserve.Sampler) -> None:
    sampler.update_env("profile:counting")
    sampler.obtain_samples(10, seed=1)
    found = hosts("Counting")
    assert found
    os.kill(sampler.status().workers[0].process_id, signal.SIGKILL)
    assert soon(lambda: found.isdisjoint(hosts("Counting")))


@pytest.mark.parametrize(("profile", "quotes"), [("command", "no-such-program"), ("path", "/no/such/path")])
def test_update_refuses_what_the_machine_lacks(sampler: rollserve.Sampler, profile: str, quotes: str) -> None:
    before = sampler.status().env_version
    with raises(rollserve.InvalidArgumentError, reason=Reason.ENV_REFUSED, quotes=quotes):
        sampler.update_env(f"profile:{profile}")
    assert sampler.status().env_version == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("sandbox", [False, True])
def test_process_is_left_without_the_boundary_alone(number: signal.Signals, sandbox: bool) -> None:
    profiles = {"leaving": {"env": "hostile_envs:Leaving", "python": sys.executable, "sandbox": sandbox}}
    options = ("--env", "profile:leaving", "--workers", "1", "--rows", "1", "--backend", "in-process")
    with local_server(*options, "--profiles", json.dumps(profiles), environment=server_environment()) as running:
        with rollserve.connect(running.address) as sampler:
            sampler.update_agent(rollserve.RandomAgent())
            sampler.obtain_samples(1, seed=1)
        assert left()
        running.stop(number)
    if sandbox:
        assert soon(lambda: not left())
    else:
        assert left()
        for process in left():
            process.kill()


def test_server_does_not_start_without_the_boundary() -> None:
    profiles = json.dumps({"cartpole": {"env": "CartPole-v1", "sandbox": True}})
    command = [sys.executable, "-m", "rollserve_server", "--listen", "127.0.0.1:0", "--backend", "in-process"]
    command += ["--env", "profile:cartpole", "--profiles", profiles]
    script = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    without = ["unshare", "--user", "--map-root-user", "sh", "-c", script, "sh", *command]
    ended = subprocess.run(without, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "sandbox: expected Linux" in ended.stderr
    assert "Traceback" not in ended.stderr


async def test_boundary_is_in_the_journal() -> None:
    backend = LastingBackend()
    async with pool_on(backend, profiles={"bounded": {"env": "CartPole-v1", "sandbox": LIMITS}}) as pool:
        await pool.update_env([EnvSpec("profile:bounded")])
        await pool.update_agent([RandomSpec()])
    state = backend.left()
    async with pool_on(backend, keep=False) as pool:
        await sample(pool, AtLeast(20), seed=1)
    assert state is not None
    (kept,) = state.envs[2].version.specs
    assert isinstance(kept, ProfileEnv)
    assert kept.host == HostStart(sandbox=SandboxSetting(**LIMITS))


@pytest.mark.parametrize(
    "sandbox", [{"paths": ["data"]}, {"paths": ["/"]}, {"memory_bytes": 1000}, {"processes": 0}, {"speed": 1}, "yes"]
)
def test_settings_refuse_another_boundary(sandbox: object) -> None:
    with pytest.raises(ValueError, match="sandbox"):
        settings(profiles={"bounded": {"env": "CartPole-v1", "sandbox": sandbox}})
