"""Freed memory stays with the process after `hold_on_to_memory`, and goes back after `give_back_memory`."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

SCRIPT = """
import sys
import numpy as np
import psutil
import rollserve

is_done = {"hold": rollserve.hold_on_to_memory, "give back": rollserve.give_back_memory, "": bool}[sys.argv[1]]()
for size in map(int, sys.argv[2:]):
    array = np.ones(size << 20, np.uint8)
    del array
print(is_done, psutil.Process().memory_info().rss >> 20)
"""
MANY_MEGABYTES = 100
SOME_MEGABYTES = (31, 30)
"""Sizes of arrays; glibc takes the second one from the heap, where it stays by default."""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc allows it")
def test_hold_on_to_memory_keeps_freed_memory() -> None:
    assert megabytes_of("hold", MANY_MEGABYTES) > megabytes_of("", MANY_MEGABYTES) + 90


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc allows it")
def test_give_back_memory_returns_freed_memory() -> None:
    assert megabytes_of("give back", *SOME_MEGABYTES) < megabytes_of("", *SOME_MEGABYTES) - 25


def megabytes_of(what: str, *sizes: int) -> int:
    """Return the resident MiB of a process that has allocated and freed arrays of these sizes, in MiB."""
    command = [sys.executable, "-c", SCRIPT, what, *map(str, sizes)]
    is_done, num_megabytes = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert is_done == str(bool(what))
    return int(num_megabytes)
