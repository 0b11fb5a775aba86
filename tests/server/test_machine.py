"""Limits of a process: the machine's memory, or less where control groups limit it, and files."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rollserve_server.machine import data_bytes, is_own_limit, memory_bytes, private_bytes

GROWTH = """
import numpy as np
from rollserve_server.machine import data_bytes, private_bytes
before = private_bytes(), data_bytes()
reserved, written = np.empty(512 << 20, np.uint8), np.ones(256 << 20, np.uint8)
print(private_bytes() - before[0], data_bytes() - before[1])
"""
"""Reserves 768 MiB, of which it writes 256, and prints how two measures grow.

In a process of its own, because threads of other tests free memory meanwhile.
"""

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


def test_private_bytes_are_what_the_process_has_written_and_data_bytes_what_it_has_reserved() -> None:
    grown = subprocess.run([sys.executable, "-c", GROWTH], capture_output=True, check=True, text=True, timeout=60)
    written, reserved = (int(num_bytes) >> 20 for num_bytes in grown.stdout.split())
    assert 230 <= written <= 280
    assert 691 <= reserved <= 845


def test_memory_of_the_process_is_zero_where_it_is_unknown(tmp_path: Path) -> None:
    assert (private_bytes(tmp_path), data_bytes(tmp_path)) == (0, 0)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS])
def test_error_of_a_process_without_room_is_no_fault_of_a_peer(number: int) -> None:
    assert is_own_limit(OSError(number, os.strerror(number)))
    assert not is_own_limit(ConnectionRefusedError(errno.ECONNREFUSED, "refused"))
