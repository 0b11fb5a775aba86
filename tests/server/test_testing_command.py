"""The command `python -m rollserve_server.testing`, for tests in other languages."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rollserve
from rollserve_server.local import LocalServer

COMMAND = (sys.executable, "-W", "error", "-m", "rollserve_server.testing")
SAMPLE = (
    f"'{Path(sys.executable).parent}/rollserve' sample $ROLLSERVE_TARGET --steps 300 --random-agent --out batch.npz"
)


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def is_alive(address: str) -> bool:
    """Whether a server is there, even if it is just ending, or slow."""
    try:
        with rollserve.connect(address, timeout=1) as sampler:
            sampler.status()
    except rollserve.UnavailableError:
        return False
    except (rollserve.CancelledError, rollserve.DeadlineError):
        pass
    return True


ASK = "import os, urllib.request as u; u.urlopen(u.Request(os.environ['ROLLSERVE_TEST_CONTROL'] + '/faults', " + (
    'b\'{"fault": "break-stream"}\', {"Content-Type": "application/json"}))'
)


def test_command_runs_with_a_server_can_ask_for_faults_and_its_signal_is_the_exit_status(tmp_path: Path) -> None:
    script = f'echo $ROLLSERVE_TARGET; "{sys.executable}" -c "$1"; {SAMPLE} >&2; kill -9 $$'
    shown = run(tmp_path, "--seed", "5", "--log", "log", "--", "sh", "-euc", script, "sh", ASK)
    assert shown.returncode == 137, shown.stderr
    log = (tmp_path / "log").read_text()
    assert "seed=5" in log
    assert log.count("fault made") == 1
    assert len(rollserve.EpisodeBatch.load(tmp_path / "batch.npz")) > 0
    host, _, port = shown.stdout.strip().rpartition(":")
    assert (host, int(port) > 0) == ("127.0.0.1", True)
    assert not is_alive(shown.stdout.strip())


def test_missing_command_has_the_exit_status_of_a_shell(tmp_path: Path) -> None:
    assert run(tmp_path, "--", "no-such-command").returncode == 127


def test_command_gets_sigterm_and_may_end_in_order(tmp_path: Path) -> None:
    script = "trap 'echo ended; exit 3' TERM; echo ready; while :; do sleep 0.05; done"
    process = subprocess.Popen([*COMMAND, "--", "sh", "-c", script], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.stdout.readline() == "ended\n"
        assert process.wait(60) == 3


def test_server_that_cannot_start_is_reported(tmp_path: Path) -> None:
    shown = run(tmp_path, "--env", "NoSuch-v0", "--", "touch", "ran")
    assert shown.returncode == 1
    assert "Error: " in shown.stderr
    assert "NoSuch-v0" in shown.stderr
    assert not (tmp_path / "ran").exists()


@pytest.fixture(scope="module")
def serving() -> Iterator[tuple[str, str]]:
    with served() as (_, target, control):
        yield target, control


@contextlib.contextmanager
def served(*options: str) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    process = subprocess.Popen([*COMMAND, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        target, control = (process.stdout.readline().strip() for _ in range(2))
        try:
            yield process, target, control
        finally:
            process.stdin.close()
            assert process.wait(60) == 0
            assert process.stdout.read() == ""


def test_server_without_a_command_serves_until_its_input_ends() -> None:
    with served() as (_, target, _):
        assert is_alive(target)
    assert not is_alive(target)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_server_without_a_command_ends_with_a_signal(number: int) -> None:
    with served() as (process, target, _):
        os.kill(process.pid, number)
        assert process.wait(60) == 0
    assert not is_alive(target)


def test_server_ends_when_its_command_is_killed() -> None:
    process = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        target = process.stdout.readline().strip()
        process.kill()
    until = time.monotonic() + 60
    while is_alive(target):
        assert time.monotonic() < until


def ask(url: str, body: object = None, kind: str = "application/json") -> tuple[int, Any]:
    """Return the status and the answer of a GET, or of a POST if there is a body."""
    data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": kind})
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_control_endpoint_makes_faults_and_resets(serving: tuple[str, str]) -> None:
    target, control = serving
    assert ask(f"{control}/reset", {}) == (200, {})
    with rollserve.connect(target) as sampler:
        sampler.update_agent(rollserve.RandomAgent())
        assert ask(f"{control}/faults", {"fault": "kill-worker"}) == (200, {})
        fault = {"times": 1, "fault": "kill-worker", "worker_index": None, "after_orders": 0}
        assert ask(f"{control}/faults") == (200, {"waiting": [fault], "made": []})
        account = sampler.obtain_samples(100).account
        assert account.retry_reasons["worker_lost"] > 0
        assert ask(f"{control}/faults") == (200, {"waiting": [], "made": [fault]})
        assert ask(f"{control}/reset", {}) == (200, {})
        assert ask(f"{control}/faults") == (200, {"waiting": [], "made": []})
        assert sampler.status().policy_version == 0


@pytest.mark.parametrize(
    ("path", "body", "kind", "status", "text"),
    [
        ("/faults", {"fault": "meteor"}, "application/json", 400, "fault: expected a fault: kill-worker"),
        ("/faults", [], "application/json", 400, "body: expected a JSON object, got list"),
        ("/faults", b"{", "application/json", 400, "Expecting"),
        ("/faults", {"fault": "kill-worker"}, "text/plain", 415, "content-type: expected application/json"),
        ("/faults", b" " * 100_000, "application/json", 413, "body: expected at most 65536 bytes"),
        ("/fault", {}, "application/json", 404, "path: expected /faults or /reset, got /fault"),
        ("/", None, "application/json", 404, "path: expected /faults, got /"),
    ],
)
def test_control_endpoint_refuses_what_it_does_not_know(
    serving: tuple[str, str], path: str, body: object, kind: str, status: int, text: str
) -> None:
    code, answer = ask(serving[1] + path, body, kind)
    assert (code, list(answer)) == (status, ["error"])
    assert answer["error"].startswith(text)
    assert ask(f"{serving[1]}/faults")[1]["waiting"] == []


def test_ordinary_servers_have_no_faults(thread_server: LocalServer) -> None:
    with pytest.raises(RuntimeError, match="expected 'reset', got 'fault'"):
        thread_server.request('fault {"fault": "kill-worker"}')
