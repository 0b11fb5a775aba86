"""The container engine: commands of `docker` and of compose, for one project."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["ROOT", "CommandError", "Engine"]

ROOT = Path(__file__).parents[2]
_PROJECT = "rollserve-test"


class CommandError(RuntimeError):
    """A command that ended with an error; its text has the last lines of what it printed."""


class Engine:
    """Runs `docker`, and `docker compose` or `docker-compose`, in the repository.

    Attributes:
        environment: variables for docker-compose.yml, besides this process's.
        log: file with all commands and what they printed.
    """

    def __init__(self, docker: str, log: Path) -> None:
        self._docker = shutil.which(docker) or docker
        self.environment: dict[str, str] = {"COMPOSE_PROJECT_NAME": _PROJECT}
        self.log = log
        try:
            self.docker("compose", "version")
            self._compose = [self._docker, "compose"]
        except CommandError:
            self._compose = ["docker-compose"]

    def docker(self, *arguments: str, timeout: float = 120.0) -> str:
        """Run a command of `docker`; return what it printed.

        Raises:
            CommandError: it failed.
        """
        return self._run([self._docker, *arguments], timeout).decode()

    def compose(self, *arguments: str, timeout: float = 300.0) -> str:
        """Run a command of compose, as `docker`."""
        return self._run([*self._compose, *arguments], timeout).decode()

    def compose_bytes(self, *arguments: str, data: bytes = b"", timeout: float = 120.0) -> bytes:
        """Run a command of compose that reads `data`; return what it printed, as it is."""
        return self._run([*self._compose, *arguments], timeout, data)

    def run(self, *command: str, timeout: float = 600.0) -> str:
        """Run any command, as `docker`."""
        return self._run(list(command), timeout).decode()

    def has_image(self, image: str) -> bool:
        """Whether the engine has an image, or gets it from its registry."""
        for command in (("image", "inspect"), ("pull", "--quiet")):
            try:
                self.docker(*command, image, timeout=300.0)
            except CommandError:
                continue
            return True
        return False

    def containers(self, service: str = "", *, all_states: bool = False) -> list[str]:
        """Return the ids of the project's containers, or of a service's, in the order of their numbers."""
        filters = [f"label=com.docker.compose.project={_PROJECT}", "label=com.docker.compose.oneoff=False"]
        if service:
            filters.append(f"label=com.docker.compose.service={service}")
        arguments = [part for each in filters for part in ("--filter", each)]
        if all_states:
            arguments.append("--all")
        found = [self.inspect(name) for name in self.docker("ps", "--quiet", *arguments).split()]
        found.sort(key=lambda each: int(each["Config"]["Labels"]["com.docker.compose.container-number"]))
        return [each["Id"] for each in found]

    def inspect(self, name: str) -> dict[str, Any]:
        """Return what the engine knows about a container or an image."""
        described: list[dict[str, Any]] = json.loads(self.docker("inspect", name))
        return described[0]

    def address(self, container: str, network: str) -> str:
        """Return a container's address in a network of the project."""
        networks: Mapping[str, Any] = self.inspect(container)["NetworkSettings"]["Networks"]
        return str(networks[self.network(network)]["IPAddress"])

    def network(self, name: str) -> str:
        """Return the engine's name of a network of the project."""
        return f"{_PROJECT}_{name}"

    def _run(self, command: list[str], timeout: float, data: bytes = b"") -> bytes:
        # docker-compose is a Python program: it must not find the modules of the tests.
        environment = {**os.environ, **self.environment}
        environment.pop("PYTHONPATH", None)
        with self.log.open("ab") as log:
            log.write(f"$ {' '.join(command)}\n".encode())
            try:
                done = subprocess.run(
                    command, cwd=ROOT, env=environment, input=data, capture_output=True, timeout=timeout, check=False
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                raise CommandError(f"{command}: {error}") from None
            log.write(done.stderr + (done.stdout if done.stdout.isascii() else b"") + b"\n")
        if done.returncode:
            printed = (done.stderr or done.stdout).decode(errors="replace")
            raise CommandError(f"{' '.join(command)}: status {done.returncode}: {printed[-2000:]}")
        return done.stdout
