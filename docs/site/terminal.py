"""The picture of a terminal in the README: `python docs/site/terminal.py FILE.svg` runs its commands and draws them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

from rollserve_server.local import local_server

_OPTIONS = ("--env", "CartPole-v1", "--vectorization", "rows", "--workers", "2")
_COMMANDS = (
    "rollserve sample localhost:50051 --steps 10000 --seed 7 --random-agent",
    "rollserve resize localhost:50051 5",
    "rollserve sample localhost:50051 --steps 10000 --seed 7 --out batch.npz",
    "rollserve verify batch.npz | tail -n 1",
)
_WIDTH = 92
_LEFT_OUT = re.compile(r"\s*(@font-face \{.*?\}|<!--.*?-->)", re.DOTALL)
"""Web fonts, which a picture does not load, and comments."""


def record() -> list[tuple[str, str]]:
    """Run the commands on a server with threads; return each with what it prints."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with (
        tempfile.TemporaryDirectory() as folder,
        local_server(*_OPTIONS, "--backend", "in-process", log=Path(folder, "log")) as server,
    ):
        target = f"localhost:{server.address.rpartition(':')[2]}"
        recorded = []
        for command in _COMMANDS:
            ran = subprocess.run(  # noqa: S603  # the commands above
                ["bash", "-euo", "pipefail", "-c", command.replace("localhost:50051", target)],  # noqa: S607
                cwd=folder,
                env={**os.environ, "PATH": path},
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            recorded.append((command, ran.stdout))
        return recorded


def draw(recorded: list[tuple[str, str]], file: Path) -> None:
    """Write a picture of commands and what they printed."""
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=_WIDTH, file=nowhere)
        for command, printed in recorded:
            console.print(Text.assemble(("$ ", "green"), (command, "bold")))
            console.print(Text(printed))
    drawn = console.export_svg(title="the same episodes with 2 and with 5 workers", unique_id="terminal")
    file.write_text(_LEFT_OUT.sub("", drawn) + "\n")


if __name__ == "__main__":
    draw(record(), Path(sys.argv[1]))
