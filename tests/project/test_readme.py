"""Examples, links and make targets of the README and its neighbours."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import rollserve
from rollserve_server.local import LocalServer, local_server

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
SERVER = re.findall(r"^rollserve-server (.*) --listen 127.0.0.1:50051$", README, re.MULTILINE)
EXAMPLES = re.findall(r"<!-- tested -->\n```(\w+)\n(.*?)```", README, re.DOTALL)


def test_readme_has_a_shell_and_a_python_example() -> None:
    assert [language for language, _ in EXAMPLES] == ["bash", "python"]


@pytest.fixture(scope="module")
def readme_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """The README's own server, with threads as workers."""
    (options,) = SERVER
    log = tmp_path_factory.mktemp("server") / "server.log"
    with local_server(*options.split(), "--backend", "in-process", log=log) as running:
        yield running


@pytest.mark.parametrize(("language", "code"), EXAMPLES, ids=[language for language, _ in EXAMPLES])
def test_readme_example_runs_on_its_own_server(
    language: str, code: str, readme_server: LocalServer, tmp_path: Path
) -> None:
    assert "127.0.0.1:50051" in code
    code = code.replace("127.0.0.1:50051", readme_server.address)
    command = ["bash", "-euc", code] if language == "bash" else [sys.executable, "-W", "error", "-c", code]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    shown = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )
    assert shown.returncode == 0, shown.stderr
    if language == "bash":
        assert len(rollserve.EpisodeBatch.load(tmp_path / "batch.npz")) > 0
        assert "agent: random" in shown.stdout
    else:
        assert "mean return" in shown.stdout


def test_links_point_to_existing_files() -> None:
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md"):
        for link in re.findall(r"\]\(([^)#]+)\)", (ROOT / name).read_text()):
            assert (ROOT / name).parent.joinpath(link).exists(), f"{name}: {link}"


def test_readme_has_under_100_lines() -> None:
    assert len(README.splitlines()) < 100


def test_readme_links_every_tutorial_and_example() -> None:
    pages = [*(ROOT / "docs").glob("tutorials/*.md"), *(ROOT / "docs").glob("coming-from/*.md")]
    assert [page.name for page in pages if f"({page.relative_to(ROOT)})" not in README] == []
    listed = (ROOT / "examples" / "README.md").read_text()
    programs = [file.name for file in (ROOT / "examples").glob("*.py") if "__main__" in file.read_text()]
    assert programs
    assert [name for name in programs if f"({name})" not in listed] == []


def test_navigation_has_every_page_once() -> None:
    docs = ROOT / "docs"
    listed = re.findall(r"^[\w/-]+$", (docs / "site" / "navigation.md").read_text(), re.MULTILINE)
    pages = [str(page.relative_to(docs).with_suffix("")) for page in docs.rglob("*.md") if page.parent.name != "site"]
    assert sorted(name for name in listed if not name.startswith("reference/")) == sorted(pages)


def test_terminal_picture_shows_what_its_commands_print(tmp_path: Path) -> None:
    drawn = tmp_path / "terminal.svg"
    subprocess.run([sys.executable, ROOT / "docs" / "site" / "terminal.py", drawn], check=True)
    shown, expected = map(lines_of_picture, (ROOT / "docs" / "images" / "terminal.svg", drawn))
    assert shown == expected
    assert len(shown) > 15


def lines_of_picture(file: Path) -> list[str]:
    """Return the texts of a picture, without times and speeds."""
    texts = map(html.unescape, re.findall(r">([^<>\n]+)</text>", file.read_text()))
    return [re.sub(r"\sin\s[\d.]+\ss,\s\d+\ssteps/s", "", text) for text in texts]


def test_each_folder_of_tests_is_described() -> None:
    described = (ROOT / "tests" / "README.md").read_text()
    folders = {
        path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and not path.name.startswith((".", "_"))
    }
    table = "\n".join(line.split("|")[1] for line in described.splitlines() if line.startswith("| `"))
    assert [folder for folder in sorted(folders) if f"`{folder}`" not in table] == []


def test_named_make_targets_exist() -> None:
    listed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in ("README.md", "CONTRIBUTING.md"):
        for target in re.findall(r"`make (\w+)", (ROOT / name).read_text()):
            assert f"make {target} " in listed, f"{name}: make {target}"
