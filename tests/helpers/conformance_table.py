"""Writes the table of docs/conformance.md: `make conformance` runs the kit with the adapters of all clients."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__: list[str] = []

_ROOT = Path(__file__).parents[2]
_PAGE = _ROOT / "docs" / "conformance.md"
_HEADING = "## Results of the clients\n"
_KIT = str(Path(sys.executable).with_name("rollserve-conformance"))
_LANGUAGES = {"cpp": "C++", "go": "Go", "java": "Java", "typescript": "TypeScript"}


def main() -> int:
    """Run the kit, and write the table; return 1 if a client cannot be built or fails a case."""
    commands: Mapping[str, Sequence[str]] = {
        "Python": (sys.executable, "-m", "rollserve_server.conformance.python_adapter"),
        **{title: _adapter(folder) for folder, title in _LANGUAGES.items()},
    }
    status = 0
    with tempfile.TemporaryDirectory() as folder:
        files = {title: Path(folder, f"{number}.json") for number, title in enumerate(commands)}
        for title, command in commands.items():
            print(f"== {title}", flush=True)  # noqa: T201  # a command of the Makefile
            status |= subprocess.run([_KIT, "run", "--json", files[title], "--", *command], check=False).returncode
        columns = [f"{title}={file}" for title, file in files.items()]
        table = subprocess.run([_KIT, "table", *columns], capture_output=True, text=True, check=True).stdout
    before = _PAGE.read_text().partition(_HEADING)[0]
    _PAGE.write_text(f"{before}{_HEADING}\n`make conformance` writes this table.\n\n{table}")
    return status


def _adapter(folder: str) -> Sequence[str]:
    """Return the command of a client's adapter, built."""
    make = ["make", "--silent", "-C", str(_ROOT / "client" / folder), "adapter"]
    return subprocess.run(make, stdout=subprocess.PIPE, text=True, check=True).stdout.split()


if __name__ == "__main__":
    sys.exit(main())
