"""Freed memory stays with the process after `hold_on_to_memory`, and goes back after `give_back_memory`.

A client keeps as much as a few messages take.
"""

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

does = {
    "hold": rollserve.hold_on_to_memory,
    "give back": rollserve.give_back_memory,
    "connect": lambda: bool(rollserve.connect("127.0.0.1:1")),
    "": bool,
}
is_done = does[sys.argv[1]]()
for size in map(int, sys.argv[2:]):
    array = np.ones(size << 20, np.uint8)
    del array
print(is_done, psutil.Process().memory_info().rss >> 20)
"""
MANY_MEGABYTES = 100
MESSAGE_MEGABYTES = 20
SOME_MEGABYTES = (31, 30)
"""Sizes of arrays; glibc takes the second one from the heap, where it stays by default."""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc allows it")
def test_hold_on_to_memory_keeps_freed_memory() -> None:
    assert megabytes_of("hold", MANY_MEGABYTES) > megabytes_of("", MANY_MEGABYTES) + 90


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc allows it")
def test_give_back_memory_returns_freed_memory() -> None:
    assert megabytes_of("give back", *SOME_MEGABYTES) < megabytes_of("", *SOME_MEGABYTES) - 25


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc allows it")
def test_client_keeps_memory_of_messages_and_returns_memory_of_results() -> None:
    before = megabytes_of("")
    assert megabytes_of("connect", MESSAGE_MEGABYTES) > before + MESSAGE_MEGABYTES - 2
    assert megabytes_of("connect", MANY_MEGABYTES) < before + MANY_MEGABYTES - 20


def megabytes_of(what: str, *sizes: int) -> int:
    """Return the resident MiB of a process that has allocated and freed arrays of these sizes, in MiB."""
    command = [sys.executable, "-c", SCRIPT, what, *map(str, sizes)]
    is_done, num_megabytes = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert is_done == str(bool(what))
    return int(num_megabytes)
