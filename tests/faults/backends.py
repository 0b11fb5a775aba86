"""Selection of backends for tests that would repeat themselves on Ray."""

from __future__ import annotations

import pytest

__all__ = ["SLOW_ON_RAY"]

SLOW_ON_RAY = pytest.mark.parametrize(
    "backend", ["in-process", pytest.param("ray", marks=pytest.mark.slow)], indirect=True
)
"""Mark for tests whose run on Ray repeats what another test checks on Ray."""
