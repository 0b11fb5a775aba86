"""How the tests are shared out among processes."""

from __future__ import annotations

import pytest


def test_tests_of_a_file_run_in_one_process(request: pytest.FixtureRequest) -> None:
    """Otherwise each process starts the file's servers, as with a pytest that pytest-xdist does not know."""
    if request.config.getoption("loadgroup", default=False):
        assert request.node.nodeid.endswith(f"@{request.node.location[0]}")
