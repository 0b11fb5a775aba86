"""The server of tests of environments, which need no processes of workers."""

from __future__ import annotations

import pytest

from rollserve_server.local import LocalServer


@pytest.fixture(scope="session")
def server(light_server: LocalServer) -> LocalServer:
    return light_server
