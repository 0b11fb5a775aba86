"""The plugin of pytest, in projects of their own whose warnings are errors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SETTINGS = "[pytest]\nfilterwarnings = error\n"
SERVER_TESTS = """
import pytest
import rollserve
from rollserve_server.testing import FaultyServer, faulty_server

processes = set()


@pytest.fixture(scope="session")
def rollserve_server_options():
    return ["--env", "Acrobot-v1", "--seed", "11"]


@pytest.mark.parametrize("attempt", [1, 2])
def test_server_is_as_new(rollserve_server, attempt):
    processes.add(rollserve_server.process.pid)
    with rollserve.connect(rollserve_server.address) as sampler:
        status = sampler.status()
        assert (status.policy_version, status.env_version, status.seed) == (0, 1, 11)
        assert status.action_space.n == 3
        sampler.update_agent(rollserve.RandomAgent())
        sampler.update_env("CartPole-v1")


def test_server_may_be_stopped(rollserve_server):
    processes.add(rollserve_server.process.pid)
    assert rollserve_server.stop() == 0


def test_next_test_has_another_server(rollserve_server):
    assert len(processes) == 1
    assert rollserve_server.process.pid not in processes
"""
WAITING_TESTS = """
import rollserve


def test_fault_that_nothing_causes(rollserve_server):
    rollserve_server.break_stream()


def test_fault_that_is_made(rollserve_server):
    with rollserve.connect(rollserve_server.address) as sampler:
        sampler.update_agent(rollserve.RandomAgent())
        rollserve_server.break_stream()
        sampler.obtain_samples(100)
"""
OTHER_TESTS = """
import sys


def test_nothing():
    heavy = {"ray", "grpc", "numpy", "gymnasium", "onnxruntime", "pydantic", "google", "rollserve", "http.server"}
    assert heavy & sys.modules.keys() == set()
    assert "rollserve_server.testing.plugin" in sys.modules
"""


def run(folder: Path, text: str, *options: str) -> str:
    """Run pytest in a new project with a file of tests, and return what it prints."""
    (folder / "pytest.ini").write_text(SETTINGS)
    (folder / "test_project.py").write_text(text)
    # Plugins that this project's tests need import numpy and others.
    others = [part for name in ("asyncio", "hypothesispytest", "timeout") for part in ("-p", f"no:{name}")]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *others, *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, check=False).stdout


@pytest.mark.parametrize(
    "options",
    [
        pytest.param((), id="usual", marks=pytest.mark.slow),
        pytest.param(("-W", "error", "-p", "no:xdist"), id="strict"),
    ],
)
def test_project_has_a_server_for_its_session(tmp_path: Path, options: tuple[str, ...]) -> None:
    assert "4 passed" in (shown := run(tmp_path, SERVER_TESTS, *options)), shown


def test_test_fails_if_its_fault_still_waits(tmp_path: Path) -> None:
    shown = run(tmp_path, WAITING_TESTS)
    assert "2 passed, 1 error" in shown
    assert "faults: expected all to be made, got 1 that wait" in shown
    assert "ERROR test_project.py::test_fault_that_nothing_causes" in shown


def test_project_without_the_fixture_imports_next_to_nothing(tmp_path: Path) -> None:
    assert "1 passed" in (shown := run(tmp_path, OTHER_TESTS)), shown
