"""The server as a process: its settings, its start, its log and its end."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest
from click.testing import CliRunner, Result
from commands import run_server_command
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support import raises, server_environment

import rollserve
import rollserve_server
from rollserve_server.cli import main
from rollserve_server.errors import DomainError
from rollserve_server.local import LocalServer, local_server
from rollserve_server.pool import InProcessBackend, ServerBackend
from rollserve_server.serving import Extras, check_environment, check_settings, process
from rollserve_server.settings import Settings
from rollserve_wire.v1.sampler_service_pb2 import ObtainSamplesRequest
from rollserve_wire.v1.sampler_service_pb2_grpc import SamplerServiceStub

SERVER = Path(sys.executable).with_name("rollserve-server")
LIGHT = ("--backend", "in-process", "--workers", "1", "--rows", "2")


def run(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SERVER, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **environment},
    )


def check(settings: Settings, _: object) -> None:
    """Check settings as a server does before Ray starts."""
    check_settings(settings)
    check_environment(settings)


def check_refusal(result: Result, quotes: tuple[str, ...]) -> None:
    """Check that the command has refused what it was given, and named it."""
    assert isinstance(result.exception, SystemExit)  # no other, which would be a traceback
    assert result.exit_code in (1, 2)
    for quote in quotes:
        assert quote in result.stderr


@contextlib.contextmanager
def taken_address() -> Iterator[str]:
    """Yield an address at which somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def family(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Return the process and all its descendants."""
    parent = psutil.Process(process.pid)
    return [parent, *parent.children(recursive=True)]


def test_help_names_the_settings() -> None:
    shown = run_server_command("--help").stdout
    for name in ("--env ID", "--workers N", "--listen HOST:PORT", "--config FILE", "--allow-module", "--log-json"):
        assert name in shown
    assert "[default: 127.0.0.1:50051]" in shown
    assert "underscores" in shown
    assert run("--version").stdout == f"rollserve-server, version {rollserve_server.__version__}\n"


WRONG_OPTIONS = {
    "no environment": ((), ("--env", "ROLLSERVE_ENV")),
    "no workers": (("--workers", "0"), ("--workers", "'0'")),
    "text for a number": (("--workers", "two"), ("--workers", "'two'")),
    "too many workers": (("--workers", "1000000000"), ("--workers", "10000")),
    "address": (("--listen", "here"), ("--listen", "HOST:PORT", "'here'")),
    "arguments that are no JSON": (("--env-kwargs", "{"), ("--env-kwargs", "JSON")),
    "arguments in a list": (("--env-kwargs", "[]"), ("--env-kwargs", "JSON object", "[]")),
    "arguments with NaN": (("--env-kwargs", '{"x": NaN}'), ("--env-kwargs", "JSON")),
    "wrapper of another form": (("--wrappers", '[{"nam": 1}]'), ("wrappers.0.name", "wrappers.0.nam")),
    "wrappers in no list": (("--wrappers", '{"name": "x"}'), ("--wrappers", "JSON list")),
    "wrapper that is a number": (("--wrappers", "[3]"), ("--wrappers", "wrappers.0", '"kwargs"')),
    "infinite CPUs": (("--worker-num-cpus", "inf"), ("--worker-num-cpus", "finite")),
    "too small a share of a CPU": (("--worker-num-cpus", "1e-9"), ("--worker-num-cpus", "0.0001")),
    "share above one GPU": (("--worker-num-gpus", "1.5"), ("--worker-num-gpus", "1.5")),
    "resource with an option": (
        ("--worker-resources", '{"CPU": 1}'),
        ("--worker-resources", "'CPU'", "--worker-num-cpus"),
    ),
    "negative resource": (("--worker-resources", '{"x": -1}'), ("--worker-resources", "'x'", "0.0001")),
    "huge object store": (("--object-store-bytes", "100000000000000000"), ("--object-store-bytes",)),
    "log level": (("--log-level", "LOUD"), ("--log-level",)),
    "negative seed": (("--seed", "-1"), ("--seed",)),
    "unknown option": (("--nope",), ("--nope",)),
    "file that is missing": (("--config", "/nowhere.yaml"), ("config", "/nowhere.yaml")),
}


@pytest.mark.parametrize(("options", "quotes"), WRONG_OPTIONS.values(), ids=WRONG_OPTIONS)
def test_invalid_option_is_named(options: tuple[str, ...], quotes: tuple[str, ...]) -> None:
    check_refusal(run_server_command(*(("--env", "x") if options else ()), *options), quotes)


def test_invalid_variable_is_named() -> None:
    check_refusal(run_server_command("--env", "x", ROLLSERVE_ROWS="many"), ("ROLLSERVE_ROWS", "'many'"))


def test_misspelt_variable_is_named_with_the_setting() -> None:
    shown = run_server_command("--env", "x", ROLLSERVE_WORKRS="2")
    check_refusal(shown, ("ROLLSERVE_WORKRS", "did you mean ROLLSERVE_WORKERS?"))


def test_variables_of_clients_and_services_are_no_misspelt_settings() -> None:
    others = ["ROLLSERVE_TARGET", "ROLLSERVE_TOKEN", "ROLLSERVE_TOKEN_FILE", "ROLLSERVE_CERT", "ROLLSERVE_NAMES"]
    others += ["ROLLSERVE_PORT", "ROLLSERVE_WORKERS_PORT", "ROLLSERVE_PORT_50051_TCP_ADDR", "ROLLSERVE_SERVICE_HOST"]
    shown = run_server_command("--workers", "0", **dict.fromkeys(others, "1"))
    assert "--workers" in shown.stderr
    assert not any(name in shown.stderr for name in others)


@pytest.mark.parametrize(
    ("text", "quotes"),
    [
        ("rows: 2\nworkers: 1\nrows: 3", ("rollserve.yaml", "'rows' twice", "line 3")),
        ("env_kwargs: {a: 1, a: 2}", ("rollserve.yaml", "'a' twice")),
        ("rowz: 3", ("'rowz'",)),
        ("env-kwargs: {}", ("'env-kwargs'", "'env_kwargs'")),
        ("env_kwargs: {since: 2020-01-01}", ("env_kwargs", "JSON")),
        ("allow_module: 3", ("allow_module", "3")),
        ("rows: many", ("rows", "'many'")),
        ("- rows", ("rollserve.yaml",)),
        ("rows: [", ("rollserve.yaml",)),
    ],
    ids=[
        "key twice",
        "nested key twice",
        "unknown key",
        "key with a hyphen",
        "date",
        "number for a list",
        "text for a number",
        "list",
        "no YAML",
    ],
)
def test_invalid_configuration_file_is_explained(tmp_path: Path, text: str, quotes: tuple[str, ...]) -> None:
    path = tmp_path / "rollserve.yaml"
    path.write_text(text)
    check_refusal(run_server_command("--env", "x", "--config", path), quotes)


def test_options_precede_variables_and_variables_precede_the_file(tmp_path: Path) -> None:
    config = tmp_path / "rollserve.yaml"
    config.write_text(
        "env: CartPole-v1\nenv_kwargs: {<<: {max_episode_steps: 8}, max_episode_steps: 9}\nrows: 5\nworkers: 3\n"
        "seed: 1\nlog_json: true\n"
        "wrappers: [{name: TimeLimit, kwargs: {max_episode_steps: 7}}]\n"
    )
    log = tmp_path / "log"
    options = ("--config", str(config), "--workers", "1", "--backend", "in-process")
    environment = {"ROLLSERVE_WORKERS": "2", "ROLLSERVE_ROWS": "4"}
    with (
        local_server(*options, log=log, environment=environment) as server,
        rollserve.connect(server.address) as sampler,
    ):
        status = sampler.status()
        sampler.update_agent(rollserve.RandomAgent())
        lengths = sampler.obtain_exact_episodes(8).lengths
    assert [worker.num_rows for worker in status.workers] == [4]
    assert status.seed == 1
    assert status.hidden_arguments == ("kwargs.max_episode_steps", "wrappers[0].kwargs.max_episode_steps")
    assert lengths.tolist() == [7] * 8
    events = [json.loads(line) for line in log.read_text().splitlines()]
    starts = ["starting", "starting backend", "started backend", "starting workers", "started workers"]
    assert [event["event"] for event in events] == [*starts, "serving", "stopping", "ended"]
    assert events[4]["seconds"] >= 0
    assert events[5]["listen"] == server.address
    assert {"time", "level", "logger"} <= events[0].keys()


@pytest.mark.parametrize(
    ("options", "field", "quote"),
    [
        (("--env", "nowhere:Nope"), "env", "'nowhere'"),
        pytest.param(
            ("--env", "CartPole-v1", "--wrappers", '[{"name": "TimeLimit", "kwargs": {"nope": 1}}]'),
            "wrappers[0].kwargs",
            "TimeLimit",
            marks=pytest.mark.slow,
        ),
        (("--env", "CartPole-v1", "--port-file", "/nowhere/port"), "port_file", "/nowhere/port"),
        pytest.param(("--env", "CartPole-v1", "--port-file", "/"), "port_file", "/", marks=pytest.mark.slow),
    ],
    ids=["module", "arguments of a wrapper", "folder that is missing", "folder"],
)
def test_environment_that_cannot_be_served_is_one_line(options: tuple[str, ...], field: str, quote: str) -> None:
    shown = run(*options, *LIGHT, "--listen", "127.0.0.1:0")
    assert shown.returncode == (1 if field == "port_file" else 2)  # a folder may be there at the next start
    (line,) = (line for line in shown.stderr.splitlines() if " INFO " not in line)
    assert "cannot serve" in line
    assert f"{field}: " in line
    assert quote in line


@pytest.mark.parametrize(
    ("options", "quotes"),
    [
        (("--env", "Nope-v0"), ("env: ", "'Nope-v0'")),
        (
            ("--env", "classic/connect_fuor-v3", "--multi-agent", "aec"),
            ("env: ", "did you mean 'classic/connect_four-v3'"),
        ),
        (
            (
                "--env",
                "mpe/simple_spread-v3",
                "--multi-agent",
                "parallel",
                "--wrappers",
                '[{"name": "frame_stack_v9"}]',
            ),
            ("wrappers[0].name: ", "did you mean 'frame_stack_v"),
        ),
        (("--env", "CartPole-v1", "--env-kwargs", '{"nope": 1}'), ("env_kwargs: ", "CartPole-v1")),
        (("--env", "CartPole-v1", "--wrappers", '[{"name": "Nope"}]'), ("wrappers[0].name: ", "'Nope'")),
        (("--env", "CartPole-v1", "--min-healthy-workers", "3", "--workers", "2"), ("min_healthy_workers: ", "3")),
        (
            ("--env", "CartPole-v1", "--backend", "in-process", "--worker-max-memory-bytes", "9999"),
            ("worker_max_memory_bytes: ", "in-process", "9999"),
        ),
        (("--env", "CartPole-v1", "--onnx-providers", "CUDAProvider"), ("onnx_providers: ", "'CUDAProvider'")),
        (("--env", "CartPole-v1", "--listen", "{taken}"), ("listen: ", "{taken}", os.strerror(errno.EADDRINUSE))),
        (("--env", "CartPole-v1", "--metrics-listen", "{taken}"), ("metrics_listen: ", "{taken}")),
    ],
    ids=[
        "id",
        "id of many agents",
        "wrapper of many agents",
        "arguments",
        "wrapper",
        "numbers of workers",
        "memory of threads",
        "providers",
        "port in use",
        "port of metrics in use",
    ],
)
def test_invalid_setting_is_found_before_ray_starts(options: tuple[str, ...], quotes: tuple[str, ...]) -> None:
    with taken_address() as taken:
        filled = [option.replace("{taken}", taken) for option in options]
        error = CliRunner().invoke(main, filled, obj=check).exception
    assert isinstance(error, DomainError | OSError)
    for quote in quotes:
        assert quote.replace("{taken}", taken) in str(error)


def test_refused_start_is_one_line_and_leaves_no_file(tmp_path: Path) -> None:
    port_file = tmp_path / "port"
    port_file.write_text("stale")
    with taken_address() as taken:
        shown = run(
            *("--env", "CartPole-v1", "--listen", taken, "--port-file", port_file),
            RAY_TMPDIR=str(tmp_path),
        )
    assert shown.returncode == 1
    (_, line) = shown.stderr.splitlines()
    assert f"cannot serve error='listen: expected an address to listen at, got {taken}" in line
    assert list(tmp_path.iterdir()) == []  # not even Ray's folder


def test_environment_with_many_agents_passes_the_checks_before_ray_starts() -> None:
    wrappers = [{"name": "frame_stack_v1", "kwargs": {"stack_size": 2}}]
    many = {"env": "mpe/simple_spread-v3", "multi_agent": "parallel", "wrappers": wrappers}
    profiles = {"four": {"env": "classic/connect_four-v3", "multi_agent": "aec"}}
    check(Settings.from_flat({**many, "profiles": profiles}), None)
    wrong = Settings.from_flat({**many, "profiles": {"four": {**profiles["four"], "multi_agent": "parallel"}}})
    with pytest.raises(DomainError, match=r"profiles\.four.*parallel environments"):
        check_environment(wrong)


def test_choices_are_accepted_in_any_case() -> None:
    given = {"env": "CartPole-v1", "log_level": "info", "backend": "In-Process", "vectorization": "Native"}
    settings = Settings.from_flat(given)
    chosen = settings.process.log_level, settings.process.backend, settings.pool.worker.vectorization
    assert chosen == ("INFO", "in-process", "native")


async def test_ray_that_misses_its_own_time_limit_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes: list[ServerBackend | OSError] = [OSError("timed out"), OSError("timed out"), InProcessBackend()]
    threads = set()

    def make(_: Settings) -> ServerBackend:
        threads.add(threading.get_ident())
        outcome = outcomes.pop(0)
        if isinstance(outcome, OSError):
            raise outcome
        return outcome

    settings, thread = Settings.from_flat({"env": "CartPole-v1"}), process.BackendThread()
    stopping, extras = process.Stopping(), Extras(make_backend=make)
    with pytest.raises(OSError, match="timed out"):  # at once, so that it is no time limit of Ray
        await process._start_backend(settings, thread, stopping, extras)
    monkeypatch.setattr(process, "_RAY_LIMIT_SECONDS", 0.0)
    assert isinstance(await process._start_backend(settings, thread, stopping, extras), InProcessBackend)
    assert not outcomes


def test_missing_modules_and_paths_are_warned_about() -> None:
    options = ("--env", "Nope-v0", *LIGHT, "--listen", "127.0.0.1:0", "--allow-path", "/nowhere")
    shown = run(*options, ROLLSERVE_ALLOW_MODULE="gymnasium, nosuch1, nosuch2").stderr
    assert [line.partition("WARNING ")[2] for line in shown.splitlines() if "WARNING" in line] == [
        "module not found allow_module=nosuch1",
        "module not found allow_module=nosuch2",
        "path not found allow_path=/nowhere",
    ]


def test_port_file_exists_as_long_as_the_server(tmp_path: Path) -> None:
    port_file = tmp_path / "port"
    port_file.write_text("stale")
    command = [SERVER, "--env", "CartPole-v1", *LIGHT, "--listen", "127.0.0.1:0", "--port-file", port_file]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        while "serving" not in (line := process.stderr.readline()):
            assert line, "the server has exited"
        assert line.rstrip().split("listen=127.0.0.1:")[1].split()[0] == port_file.read_text().strip()
        process.terminate()
        process.stderr.read()
    assert process.returncode == 0
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def allowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose paths clients may name, with a link out of it, and another folder beside it."""
    root = tmp_path_factory.mktemp("paths")
    for folder in ("allowed", "other"):
        (root / folder).mkdir()
    (root / "allowed" / "link").symlink_to(root / "other")
    return root / "allowed"


@pytest.fixture(scope="module")
def limiting(allowed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """A server with limits of requests: their paths, and their size."""
    wrappers = [{"name": "RecordEpisodeStatistics", "kwargs": {"stats_key": str(allowed.parent / "own")}}]
    options = ("--env", "CartPole-v1", *LIGHT, "--allow-path", str(allowed), "--wrappers", json.dumps(wrappers))
    log = tmp_path_factory.mktemp("server") / "log"
    with local_server(*options, "--max-request-bytes", "20000", log=log) as server:
        yield server


def test_paths_below_an_allowed_folder_are_accepted(limiting: LocalServer, allowed: Path) -> None:
    with rollserve.connect(limiting.address) as sampler:
        env = sampler.status().envs[0]
        sampler.update_env(env.id, wrappers=env.wrappers)  # an argument that the operator has set
        for name, reason in {
            "allowed/x": "ENV_REFUSED",  # accepted, but the environment has no such argument
            "allowed/../allowed/x": "ENV_REFUSED",
            "allowed": "ENV_REFUSED",
            "allowed/../x": "PATH_NOT_ALLOWED",
            "allowed/link/x": "PATH_NOT_ALLOWED",
            "allowedx": "PATH_NOT_ALLOWED",
            "other": "PATH_NOT_ALLOWED",
        }.items():
            with raises(rollserve.InvalidArgumentError, reason=reason):
                sampler.update_env("CartPole-v1", kwargs={"x": f"{allowed.parent}/{name}"})


def test_request_over_the_limit_is_rejected(limiting: LocalServer) -> None:
    limiting.reset()
    with rollserve.connect(limiting.address) as sampler:
        status = sampler.status()
        agent = rollserve.MlpAgent.initial(status.observation_space, status.action_space, hidden_sizes=(128, 64))
        with pytest.raises(rollserve.LimitError, match=r"larger than max \(\d+ vs\. 20000\)"):
            sampler.update_agent(agent)
        small = rollserve.MlpAgent.initial(status.observation_space, status.action_space, hidden_sizes=(8,))
        assert sampler.update_agent(small) == 1


def test_calls_without_an_agent_are_rejected(limiting: LocalServer) -> None:
    limiting.reset()
    update = {"x": np.zeros(1, np.float32)}
    with rollserve.connect(limiting.address) as sampler:
        for call in (lambda: sampler.obtain_samples(1), lambda: sampler.update_agent(update)):
            with raises(rollserve.PreconditionError, reason=rollserve.Reason.NO_AGENT):
                call()
        assert sampler.status().policy_version == 0


@pytest.fixture(params=[pytest.param("ray", marks=pytest.mark.slow), "in-process"])
def starting(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[LocalServer, Path]]:
    log = tmp_path / "log"
    options = ("--env", "sample_envs:Slow", "--backend", request.param, "--workers", "2", "--rows", "1")
    with local_server(*options, log=log, environment=server_environment()) as server:
        yield server, log


def check_has_ended(processes: list[psutil.Process], log: Path) -> None:
    """Check that all processes end, and that the log says no worse."""
    _, alive = psutil.wait_procs(processes, timeout=30)
    assert not alive
    text = log.read_text()
    assert text.splitlines()[-1].endswith("ended")
    assert "Traceback" not in text


def test_interrupt_ends_the_server_and_all_its_processes(starting: tuple[LocalServer, Path]) -> None:
    server, log = starting
    processes = family(server.process)
    with rollserve.connect(server.address) as sampler:
        sampler.update_agent(rollserve.RandomAgent())
        sampler.obtain_samples(1)
    began = time.monotonic()
    assert server.stop(signal.SIGINT) == 0
    assert time.monotonic() - began < 15
    check_has_ended(processes, log)


def test_running_call_ends_within_the_grace_period(starting: tuple[LocalServer, Path]) -> None:
    server, log = starting
    processes = family(server.process)
    with rollserve.connect(server.address) as sampler, grpc.insecure_channel(server.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        assert health.Check(health_pb2.HealthCheckRequest()).status == health_pb2.HealthCheckResponse.SERVING
        watch = health.Watch(health_pb2.HealthCheckRequest(service="rollserve.v1.SamplerService"))
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        sampler.update_agent(rollserve.RandomAgent())
        with sampler.stream_samples(20) as stream:
            time.sleep(0.5)  # a call of one to two seconds has begun
            server.process.send_signal(signal.SIGTERM)
            assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
            batch = stream.join()
        assert batch.num_steps >= 20
        with pytest.raises(rollserve.UnavailableError):  # after it has waited for another server
            sampler.status(timeout=1)
    assert server.process.wait(20) == 0
    check_has_ended(processes, log)


def test_second_signal_ends_calls_at_once_with_a_status(tmp_path: Path) -> None:
    options = ("--env", "sample_envs:Slow", *LIGHT, "--grace-seconds", "600")
    with (
        local_server(*options, log=tmp_path / "log", environment=server_environment()) as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        with rollserve.connect(server.address) as sampler:
            sampler.update_agent(rollserve.RandomAgent())
        call = SamplerServiceStub(channel).ObtainSamples(ObtainSamplesRequest(step_count=10**6))
        next(call)
        for _ in range(2):
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.02)  # so that they are two
        with pytest.raises(grpc.RpcError) as caught:
            for _ in call:
                pass
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert dict(caught.value.trailing_metadata())["rollserve-reason"] == "SERVER_STOPPING"
        assert server.process.wait(30) == 0


LOST_BACKEND = """
import asyncio, pathlib, sys, threading, time
from rollserve_server.serving import process
from rollserve_server.serving.parent import PortFile

class Lost:
    def watch(self, on_lost):
        threading.Thread(target=on_lost, args=("by design",)).start()

async def serve():
    port_file = PortFile(pathlib.Path(sys.argv[1]))
    port_file.write(1)
    process.watch_backend(Lost(), port_file.remove)
    time.sleep(60)

process._LAST_SECONDS = 0.1
asyncio.run(serve())
"""
"""A program whose backend is lost, and that ends without running any handlers, as Ray may end it."""


def test_lost_backend_leaves_no_port_file_even_if_the_process_ends_at_once(tmp_path: Path) -> None:
    path = tmp_path / "port"
    shown = subprocess.run([sys.executable, "-c", LOST_BACKEND, path], capture_output=True, timeout=50, check=False)
    assert shown.returncode == 1
    assert b"backend lost" in shown.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_lost_ray_leaves_neither_a_port_file_nor_tracebacks(tmp_path: Path) -> None:
    port_file, log = tmp_path / "port", tmp_path / "log"
    command = [SERVER, "--env", "CartPole-v1", "--workers", "3", "--listen", "127.0.0.1:0", "--port-file", port_file]
    with log.open("w") as file:
        process = subprocess.Popen([*command, "--step-seconds", "0.4"], stderr=file)
    while not port_file.exists():
        assert process.poll() is None
        time.sleep(0.05)
    with rollserve.connect(f"127.0.0.1:{port_file.read_text().strip()}", timeout=5) as sampler:
        sampler.update_agent(rollserve.RandomAgent())
        with sampler.stream_samples(10**9) as stream:
            next(stream)
            next(each for each in family(process) if each.name() == "raylet").kill()
            assert process.wait(60) == 1
    assert not port_file.exists()
    text = log.read_text()
    assert "Traceback" not in text
    assert "never retrieved" not in text


@pytest.mark.slow
def test_ctrl_c_in_a_terminal_ends_the_server(tmp_path: Path) -> None:
    """Ctrl-C reaches all processes of the terminal, not only the server."""
    port_file = tmp_path / "port"
    command = [str(SERVER), "--env", "CartPole-v1", "--workers", "1", "--listen", "127.0.0.1:0"]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(command[0], [*command, "--port-file", str(port_file)])
    shown = b""
    processes: list[psutil.Process] = []
    with contextlib.suppress(OSError):  # the terminal was closed
        while chunk := os.read(terminal, 4096):
            shown += chunk
            if b"serving" in shown and not processes:
                processes = psutil.Process(pid).children(recursive=True)
                os.write(terminal, b"\x03")
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 0, shown.decode()
    assert b"ended" in shown
    assert b"Traceback" not in shown
    assert processes
    _, alive = psutil.wait_procs(processes, timeout=30)
    assert not alive


@pytest.mark.slow
def test_signal_to_the_process_group_ends_the_server(tmp_path: Path) -> None:
    """A supervisor may signal the whole process group, so that Ray's processes end before the server."""
    port_file = tmp_path / "port"
    command = [SERVER, "--env", "CartPole-v1", "--workers", "1", "--listen", "127.0.0.1:0", "--port-file", port_file]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, stderr=log, start_new_session=True)
    while not port_file.exists():
        assert process.poll() is None
        time.sleep(0.05)
    processes = family(process)
    began = time.monotonic()
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(30) == 0
    assert time.monotonic() - began < 15
    _, alive = psutil.wait_procs(processes, timeout=30)
    assert not [each for each in alive if each.status() != psutil.STATUS_ZOMBIE]
    text = (tmp_path / "log").read_text()
    assert text.splitlines()[-1].endswith("ended")
    assert "Traceback" not in text


@pytest.mark.parametrize("elsewhere", [True, False], ids=["silent cluster", "own cluster"])
def test_signal_while_ray_starts_ends_the_server(elsewhere: bool, tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        command = [SERVER, "--env", "CartPole-v1", "--workers", "1", "--listen", "127.0.0.1:0"]
        command += ["--ray-address", f"127.0.0.1:{silent.getsockname()[1]}"] if elsewhere else []
        with (tmp_path / "log").open("w") as log:
            process = subprocess.Popen(command, stderr=log)
        while "starting" not in (tmp_path / "log").read_text():
            time.sleep(0.05)
        time.sleep(2)
        processes = family(process)
        began = time.monotonic()
        process.terminate()
        assert process.wait(30) == 0
        assert time.monotonic() - began < 20
    _, alive = psutil.wait_procs(processes, timeout=30)
    assert not alive
    text = (tmp_path / "log").read_text()
    assert text.splitlines()[-1].endswith("ended")
    assert "Traceback" not in text


@pytest.mark.slow
def test_output_of_environments_is_logged(tmp_path: Path) -> None:
    log = tmp_path / "log"
    options = ("--env", "sample_envs:Talkative", "--workers", "1", "--rows", "1", "--log-json")
    with (
        tempfile.TemporaryDirectory(prefix="rs-", dir="/tmp") as folder,  # paths of sockets are limited
        local_server(*options, log=log, environment={**server_environment(), "RAY_TMPDIR": folder}) as server,
        rollserve.connect(server.address) as sampler,
    ):
        pid = sampler.status().workers[0].process_id
        deadline = time.monotonic() + 10
        while log.read_text().count("worker output") < 2 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert server.stop() == 0
        assert list(Path(folder, "ray").glob("session_*")) == []  # Ray's files are removed
    events = [json.loads(line) for line in log.read_text().splitlines()]
    output = {(event["pid"], event["text"]) for event in events if event["event"] == "worker output"}
    assert output == {(str(pid), "hello from the environment"), (str(pid), "a complaint")}
