"""The memory that a process may use: the machine's, or less where control groups limit it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rollserve_server.machine import memory_bytes

MACHINE_BYTES = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    ("groups", "limits", "expected"),
    [
        (None, {}, MACHINE_BYTES),
        ("0::/", {"memory.max": "max"}, MACHINE_BYTES),
        ("0::/", {"memory.max": "1000"}, 1000),
        ("0::/outer/inner", {"outer/memory.max": "500", "outer/inner/memory.max": "700"}, 500),
        ("5:cpu,memory:/group", {"memory/group/memory.limit_in_bytes": "300"}, 300),
        ("0::/elsewhere", {"memory.max": "900"}, 900),
    ],
    ids=["no groups", "no limit", "limit", "outer limit", "version 1", "as in a container"],
)
def test_memory_is_the_least_limit(groups: str | None, limits: dict[str, str], expected: int, tmp_path: Path) -> None:
    if groups is not None:
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/cgroup").write_text(f"{groups}\n")
    for name, text in limits.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    assert memory_bytes(tmp_path) == expected
