"""Virtual environments with the packages that profiles name: made once for each set of them, and kept."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from rollserve_server.envs.hosts.connection import HostError

__all__ = ["python_with"]

_NEEDED = ("numpy", "protobuf")
"""What `rollserve_env_host` needs."""
_MAX_SHOWN_CHARACTERS = 2000


def python_with(packages: Sequence[str], python: str = "", *, runs_code: bool = True) -> str:
    """Return a Python that has packages, in a virtual environment that is made first if there is none yet.

    pip takes its index, and what else it needs, from its own settings, such as `PIP_INDEX_URL`. The environments are in
    `rollserve/environments` of the user's folder for caches (`XDG_CACHE_HOME`).

    Args:
        packages: requirements, as pip takes them.
        python: the Python that the environment is made from; empty for this process's own.
        runs_code: whether packages may run code of theirs to be built; else they need wheels.

    Raises:
        HostError: pip fails, or the Python does; the text has the last that they have printed.
    """
    python = python or sys.executable
    key = hashlib.sha256("\0".join([os.path.realpath(python), *sorted(packages)]).encode()).hexdigest()[:20]
    folder = _cache() / key
    with _locked(folder.with_suffix(".lock")):
        if not folder.exists():
            made = folder.with_suffix(".new")
            shutil.rmtree(made, ignore_errors=True)
            _run(python, "-m", "venv", str(made))
            options = () if runs_code else ("--only-binary", ":all:")
            # With -I, packages of `PYTHONPATH` do not count as installed.
            _run(str(made / "bin/python"), "-I", "-m", "pip", "install", "--quiet", *options, *_NEEDED, *packages)
            made.rename(folder)  # pip's programs have the old path, Python itself does not
    return str(folder / "bin/python")


def _cache() -> Path:
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rollserve" / "environments"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock that one process of the machine has at a time."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _run(*command: str) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if result.returncode:
        last = (result.stderr or result.stdout).strip()[-_MAX_SHOWN_CHARACTERS:]
        raise HostError(f"packages: expected that pip installs them, got: {last}")
