"""The guide for tests of other programs, and the README's example of a local server."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rollserve

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "testing.md").read_text()
FILES = re.findall(r"<!-- file: (\S+) -->\n```python\n(.*?)```", PAGE, re.DOTALL)
ALONE = re.findall(r"<!-- tested alone -->\n```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def run(folder: Path, *arguments: str) -> str:
    command = [sys.executable, *arguments]
    shown = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    return shown.stdout


@pytest.mark.slow
def test_files_of_the_testing_guide_pass(tmp_path: Path) -> None:
    for name, text in FILES:
        (tmp_path / name).write_text(text)
    assert "4 passed" in run(
        tmp_path, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "-p", "no:asyncio"
    )
    assert "serving" in (tmp_path / "server.log").read_text()


def test_command_of_the_testing_guide_runs(tmp_path: Path) -> None:
    (code,) = re.findall(r"<!-- tested command -->\n```bash\n(.*?)```", PAGE, re.DOTALL)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(["bash", "-euc", code], cwd=tmp_path, env={**os.environ, "PATH": path}, timeout=120, check=True)
    assert rollserve.EpisodeBatch.load(tmp_path / "batch.npz").num_steps >= 1_000
    assert "serving" in (tmp_path / "server.log").read_text()


def test_testcontainers_recipe_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skipped where Testcontainers is not installed: `pip install testcontainers`. The engine is this machine."""
    containers = pytest.importorskip("testcontainers.core.container")
    monkeypatch.setattr(containers, "DockerClient", Engine)
    monkeypatch.setattr(containers.c, "ryuk_disabled", True)
    names: dict[str, Any] = {"__name__": "recipe"}
    (code,) = re.findall(r"<!-- recipe: testcontainers -->\n```python\n(.*?)```", PAGE, re.DOTALL)
    exec(code, names)
    with names["rollserve_container"]() as container:
        target = f"{container.get_container_host_ip()}:{container.get_exposed_port(50051)}"
        with rollserve.connect(target) as sampler:
            assert sampler.status().env_version == 1
    assert container.image == f"rollserve-server:{rollserve.__version__}"


class Engine:
    """A container engine, and its only container: runs the container's command on this machine, at other ports."""

    short_id, status = "server", "running"

    def create(self, _: str, *, command: str, ports: dict[str, None], entrypoint: list[str], **__: object) -> Engine:
        self.ports = dict(zip(map(int, ports), free_ports(len(ports)), strict=True))
        for inside, outside in self.ports.items():
            assert f"0.0.0.0:{inside}" in command
            command = command.replace(f"0.0.0.0:{inside}", f"127.0.0.1:{outside}")
        assert entrypoint == ["python"]
        self.command = [sys.executable, *command.split()]
        return self

    def start(self, _: object) -> None:
        self.process = subprocess.Popen(self.command)

    def port(self, _: object, inside: int) -> int:
        return self.ports[inside]

    def host(self) -> str:
        return "127.0.0.1"

    def get_connection_mode(self) -> Any:
        return importlib.import_module("testcontainers.core.config").ConnectionMode.docker_host

    def remove(self, **_: object) -> None:
        with self.process:
            self.process.terminate()

    def reload(self) -> None:
        pass

    def close(self) -> None:
        pass

    @property
    def client(self) -> Engine:
        return self

    @property
    def id(self) -> str:
        return self.short_id


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [listener.getsockname()[1] for listener in listeners]


def test_readme_example_of_a_local_server_runs(tmp_path: Path) -> None:
    (code,) = ALONE
    run(tmp_path, "-W", "error", "-c", code)
