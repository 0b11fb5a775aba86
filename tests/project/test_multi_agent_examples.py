"""The trainers in `examples` for many agents: their commands, and that they learn."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rollserve_server.local import LocalServer

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(trainer: str, server: LocalServer, out: Path, *options: str) -> list[str]:
    """Run a trainer on a server; return the lines that it prints."""
    server.reset()
    command = [sys.executable, EXAMPLES / f"{trainer}.py", "--server", server.address, "--out", out, *options]
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert (out / "curve.png").read_bytes().startswith(b"\x89PNG")
    return shown.stdout.splitlines()


def test_team_makes_an_iteration(thread_server: LocalServer, tmp_path: Path) -> None:
    line, *_ = run("multi_agent", thread_server, tmp_path, "--steps", "1")
    assert "3,000 steps, mean return -2" in line


@pytest.mark.slow
def test_team_learns(thread_server: LocalServer, tmp_path: Path) -> None:
    run("multi_agent", thread_server, tmp_path, "--steps", "120000", "--target", "-22.5")


@pytest.mark.slow
def test_self_play_learns(thread_server: LocalServer, tmp_path: Path) -> None:
    lines = run("self_play", thread_server, tmp_path, "--steps", "120000", "--target", "0.5")
    (title,) = (number for number, line in enumerate(lines) if line.startswith("win rate"))
    assert lines[title + 1].startswith("main@")
    assert lines[-1].startswith("random@1")
