"""Hosts of environments that open streams to a gateway, as processes of their own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping

from support import server_environment

__all__ = ["Host", "hosting"]


class Host:
    """A process that is a host, whose seats have processes of their own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def wait(self, num_seats: int = 1) -> None:
        """Wait until the gateway has taken so many further seats."""
        assert self.process.stdout is not None
        for _ in range(num_seats):
            line = next(line for line in self.process.stdout if "trying again" not in line)
            assert line.startswith("connected to "), line


@contextlib.contextmanager
def hosting(
    address: str,
    *options: str,
    env: str = "CartPole-v1",
    name: str = "pole",
    seats: int = 1,
    variables: Mapping[str, str] | None = None,
) -> Iterator[Host]:
    """Yield a host that the gateway has taken."""
    command = [sys.executable, "-m", "rollserve_env_host", env, "--connect", address, "--name", name]
    environment = {**os.environ, **server_environment(), **(variables or {})}
    with subprocess.Popen(
        [*command, "--seats", str(seats), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    ) as process:
        try:
            host = Host(process)
            host.wait(seats)
            yield host
        finally:
            process.kill()
