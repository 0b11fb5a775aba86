"""A process keeps the memory that it frees, or gives it back, as it is told to."""

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
"""The second comes from a heap, and stays there, unless the process was told what to do."""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc allows it")
def test_memory_stays_with_a_process_that_wants_it() -> None:
    assert megabytes_of("hold", MANY_MEGABYTES) > megabytes_of("", MANY_MEGABYTES) + 90


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc allows it")
def test_memory_goes_back_from_a_process_that_does_not_want_it() -> None:
    assert megabytes_of("give back", *SOME_MEGABYTES) < megabytes_of("", *SOME_MEGABYTES) - 25


def megabytes_of(what: str, *sizes: int) -> int:
    """What a process has resident that was told this, and has got and freed pieces of these sizes, in MiB."""
    command = [sys.executable, "-c", SCRIPT, what, *map(str, sizes)]
    is_done, num_megabytes = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert is_done == str(bool(what))
    return int(num_megabytes)
