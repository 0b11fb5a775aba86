"""A process that is told to keeps memory that it frees."""

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

held = rollserve.hold_on_to_memory() if sys.argv[1] == "hold" else None
array = np.ones(100 << 20, np.uint8)
del array
print(held, psutil.Process().memory_info().rss >> 20)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc allows it")
def test_memory_stays_with_a_process_that_wants_it() -> None:
    held, num_megabytes = told("hold")
    assert held == "True"
    others_held, others_megabytes = told("give back")
    assert others_held == "None"
    assert num_megabytes > others_megabytes + 90


def told(what: str) -> tuple[str, int]:
    output = subprocess.run([sys.executable, "-c", SCRIPT, what], check=True, capture_output=True, text=True).stdout
    held, num_megabytes = output.split()
    return held, int(num_megabytes)
