"""The plugin of pytest: the fixture `rollserve_server`. It imports nothing else before a test uses that."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from rollserve_server.testing.faulty_server import FaultyServer

__all__ = ["rollserve_server", "rollserve_server_options"]


@pytest.fixture(scope="session")
def rollserve_server_options() -> Sequence[str]:
    """Options of the server that `rollserve_server` starts. Override this fixture to have others than none."""
    return ()


@pytest.fixture(scope="session")
def _running_rollserve_server(
    rollserve_server_options: Sequence[str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], FaultyServer]]:
    """A function that returns the server of all tests, or another one if that has ended."""
    from rollserve_server.testing.faulty_server import faulty_server

    servers: list[FaultyServer] = []
    folder = tmp_path_factory.mktemp("rollserve-server")
    with contextlib.ExitStack() as stack:

        def running() -> FaultyServer:
            if not servers or servers[-1].process.poll() is not None:
                log = folder / f"{len(servers)}.log"
                servers.append(stack.enter_context(faulty_server(*rollserve_server_options, log=log)))
            return servers[-1]

        yield running


@pytest.fixture
def rollserve_server(_running_rollserve_server: Callable[[], FaultyServer]) -> Iterator[FaultyServer]:
    """A server with threads as workers, which all tests of a session share, as after its start.

    A test fails if a fault that it asked for still waits at its end.
    """
    server = _running_rollserve_server()
    server.reset()
    yield server
    if server.process.poll() is None:
        server.check_faults()
