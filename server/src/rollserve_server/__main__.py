"""The command `rollserve-server`, also as `python -m rollserve_server`."""

import os
import sys

__all__ = ["run"]

_HASH_SEED = "PYTHONHASHSEED", "0"
"""Name and value of the variable, as in `rollserve_wire.receipts`, which imports numpy."""


def run() -> None:
    """Run the command in a process with the hash seed of all that run environments: Python reads it at its start."""
    name, value = _HASH_SEED
    if os.environ.get(name) != value and sys.executable:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, name: value})  # noqa: S606
    from rollserve_server.cli import main

    main(prog_name="rollserve-server")


if __name__ == "__main__":
    run()
