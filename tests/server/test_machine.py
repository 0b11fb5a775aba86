"""Limits of a process: the machine's memory, or less where control groups limit it, and files."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from rollserve_server.machine import data_bytes, is_own_limit, memory_bytes, private_bytes

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


def test_memory_of_the_process_counts_what_it_has_written_alone() -> None:
    num_bytes = 256 << 20
    before = private_bytes(), data_bytes()
    written = np.ones(num_bytes, np.uint8)
    after = private_bytes(), data_bytes()
    assert written.nbytes == num_bytes
    assert after[0] - before[0] >= 0.9 * num_bytes
    assert after[1] - before[1] >= 0.9 * num_bytes


def test_memory_of_the_process_is_zero_where_it_is_unknown(tmp_path: Path) -> None:
    assert (private_bytes(tmp_path), data_bytes(tmp_path)) == (0, 0)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS])
def test_error_of_a_process_without_room_is_no_fault_of_a_peer(number: int) -> None:
    assert is_own_limit(OSError(number, os.strerror(number)))
    assert not is_own_limit(ConnectionRefusedError(errno.ECONNREFUSED, "refused"))
