"""Reach of probes of agents and environments: variables, the network, files."""

from __future__ import annotations

import ctypes
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support import HELPERS, raises, server_environment

import rollserve
from rollserve import Reason
from rollserve_server.agents.sandbox import run_in_sandbox
from rollserve_server.local import local_server
from rollserve_server.settings import SandboxLimits

SECRETS = {"RAY_AUTH_TOKEN": "hush", "DATABASE_PASSWORD": "hush", "AWS_ACCESS_KEY_ID": "hush"}
SETTINGS = {"LICENSE_SERVER": "kept", "OMP_WAIT_POLICY": "kept"}


def reached(folder: Path, *, runs_code: bool) -> dict[str, Any]:
    """Return what a program in a sandbox has reached."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        program = [str(HELPERS / "curious_program.py"), host, str(port), str(folder / "file"), *SECRETS, *SETTINGS]
        return run_in_sandbox(program, {}, 0, SandboxLimits(), runs_code=runs_code)


@pytest.fixture(autouse=True)
def _variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (SECRETS | SETTINGS).items():
        monkeypatch.setenv(name, value)


def test_probe_of_a_model_gets_few_variables(tmp_path: Path) -> None:
    assert reached(tmp_path, runs_code=False)["variables"] == {"OMP_WAIT_POLICY": "kept"}


def test_probe_of_a_model_has_no_network(tmp_path: Path) -> None:
    allowed = shutil.which("unshare") and any(
        not subprocess.run(["unshare", option, "true"], capture_output=True, check=False).returncode
        for option in ("--net", "-rn")
    )
    if not allowed:
        pytest.skip("the kernel allows no namespaces")
    assert not reached(tmp_path, runs_code=False)["connects"]


def test_probe_of_a_model_cannot_write_files(tmp_path: Path) -> None:
    if ctypes.CDLL(None).syscall(444, None, 0, 1) < 1:  # asks for the version of Landlock
        pytest.skip("the kernel has no Landlock")
    assert not reached(tmp_path, runs_code=False)["writes"]
    assert not list(tmp_path.iterdir())


def test_probe_of_code_gets_all_but_secrets(tmp_path: Path) -> None:
    assert reached(tmp_path, runs_code=True) == {"connects": True, "writes": True, "variables": SETTINGS}


def test_environment_that_is_tried_finds_no_token_of_ray() -> None:
    options = ("--env", "CartPole-v1", "--workers", "1", "--allow-module", "sample_envs")
    names = ["RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "DATABASE_PASSWORD", "LICENSE_SERVER"]
    curious = rollserve.EnvSpec("sample_envs:Curious", {"names": names})
    environment = {**server_environment(), "DATABASE_PASSWORD": "hush", "LICENSE_SERVER": "kept"}
    with local_server(*options, environment=environment) as server, rollserve.connect(server.address) as sampler:
        found = repr({"LICENSE_SERVER": "kept"})
        with raises(rollserve.InvalidArgumentError, reason=Reason.ENV_REFUSED, quotes=found):
            sampler.update_env(curious)
