"""Table of what each client passes: `make conformance` runs the kit with the adapters of all clients."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.shared.client_adapters import CLIENTS, adapter_of

__all__: list[str] = []

_KIT = str(Path(sys.executable).with_name("rollserve-conformance"))


def main() -> int:
    """Run the kit, and print the table; return 1 if a client fails a case. Raises as `adapter_of`."""
    commands = {language: adapter_of(client) for client, language in CLIENTS.items()}
    status = 0
    with tempfile.TemporaryDirectory() as folder:
        files = {title: Path(folder, f"{number}.json") for number, title in enumerate(commands)}
        for title, command in commands.items():
            print(f"== {title}", flush=True)  # noqa: T201  # a command of the Makefile
            status |= subprocess.run([_KIT, "run", "--json", files[title], "--", *command], check=False).returncode
        columns = [f"{title}={file}" for title, file in files.items()]
        subprocess.run([_KIT, "table", *columns], check=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
