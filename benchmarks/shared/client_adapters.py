"""The clients of all languages, by their adapters for the conformance kit."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["CLIENTS", "AdapterBuildError", "adapter_of"]

CLIENTS = {"python": "Python", "cpp": "C++", "go": "Go", "java": "Java", "typescript": "TypeScript"}
"""Languages by the names of the clients; all but Python's have a folder of that name in `client`."""
_ROOT = Path(__file__).parents[2]


class AdapterBuildError(Exception):
    """An adapter cannot be built; the text is the end of what its Makefile says."""


def adapter_of(client: str) -> Sequence[str]:
    """Return the command of a client's adapter, which is built first.

    Raises:
        AdapterBuildError: it cannot be built here.
    """
    if client == "python":
        return sys.executable, "-m", "rollserve_conformance.python_adapter"
    command = ["make", "--silent", "-C", str(_ROOT / "client" / client), "adapter"]
    built = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # the project's own
    if built.returncode:
        raise AdapterBuildError(f"{CLIENTS[client]}: {built.stderr.strip()[-500:]}")
    return built.stdout.split()
