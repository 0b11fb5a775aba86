"""The command `rollserve`, run as a process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROLLSERVE = Path(sys.executable).with_name("rollserve")


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([ROLLSERVE, *arguments], capture_output=True, text=True, timeout=120, check=False)
