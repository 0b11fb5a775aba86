"""The guide for tests of other programs, and the README's example of a local server."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = re.findall(r"<!-- file: (\S+) -->\n```python\n(.*?)```", (ROOT / "docs" / "testing.md").read_text(), re.DOTALL)
ALONE = re.findall(r"<!-- tested alone -->\n```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def run(folder: Path, *arguments: str) -> str:
    command = [sys.executable, *arguments]
    shown = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    return shown.stdout


def test_files_of_the_testing_guide_pass(tmp_path: Path) -> None:
    for name, text in FILES:
        (tmp_path / name).write_text(text.replace("/opt/rollserve/bin", str(Path(sys.executable).parent)))
    assert "4 passed" in run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert "serving" in (tmp_path / "server.log").read_text()


def test_readme_example_of_a_local_server_runs(tmp_path: Path) -> None:
    (code,) = ALONE
    run(tmp_path, "-W", "error", "-c", code)
