"""The tutorials, and the pages for those who come from another library: their code and commands are what runs."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rollserve_server.local import local_server

ROOT = Path(__file__).parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"
TUTORIAL_PAGES = sorted(page.stem for page in TUTORIALS.glob("*.md"))
LIBRARY_PAGES = sorted(page.stem for page in (ROOT / "docs" / "coming-from").glob("*.md"))
PAGES = {
    page.stem: page.read_text()
    for folder in ("tutorials", "coming-from")
    for page in (ROOT / "docs" / folder).glob("*.md")
}
SERVICES = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
BIN = Path(sys.executable).parent
DOCKER = """#!/bin/sh
# `docker compose`, for the services whose commands need no container.
case "$*" in
"compose run --rm secrets "* | "compose run --rm -T secrets "*)
    while [ "$1" != secrets ]; do shift; done
    shift
    exec sh SCRIPT "$@" ;;
"compose exec grafana cat /secrets/"*) cat "FOLDER/${5#/secrets/}" ;;
"compose "*" up "* | "compose up "*) ;;
*) echo "unexpected: docker $*" >&2; exit 1 ;;
esac
"""


def blocks(page: str, language: str) -> list[str]:
    """Return the code of a page in one language, block by block."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGES[page], re.MULTILINE | re.DOTALL)


def without_indents(text: str) -> str:
    return "\n".join(line.strip() for line in text.splitlines())


def run(folder: Path, *command: str | Path) -> str:
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    shown = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    return shown.stdout


@pytest.mark.parametrize("page", TUTORIAL_PAGES)
def test_tutorial_has_at_most_800_words(page: str) -> None:
    assert len(PAGES[page].split()) <= 800


@pytest.mark.parametrize("page", LIBRARY_PAGES)
def test_code_for_another_library_is_beside_code_that_runs(page: str) -> None:
    assert len(PAGES[page].split()) <= 700
    sources = [TUTORIALS / "halfcheetah.py", ROOT / "docs" / "bridges.md"]
    tested = without_indents("".join(source.read_text() for source in sources))
    theirs, *ours = blocks(page, "python")
    ast.parse(theirs)
    assert [code for code in ours if without_indents(code) not in tested] == []


@pytest.mark.parametrize("file", sorted(TUTORIALS.glob("*.py")), ids=lambda file: file.stem)
def test_tutorial_shows_its_whole_file(file: Path) -> None:
    shown = "".join(blocks(file.stem.replace("_", "-"), "python"))
    assert shown.split() == file.read_text().split()


def test_first_batch_prints_what_the_page_shows(tmp_path: Path) -> None:
    printed = run(tmp_path, sys.executable, TUTORIALS / "first_batch.py")
    assert printed == "".join(blocks("first-batch", "text"))
    verified = run(tmp_path, "rollserve", "verify", "batch.npz").splitlines()[-1]
    assert f"`{verified}`" in PAGES["first-batch"]


def test_own_environment_prints_what_the_page_shows(tmp_path: Path) -> None:
    (tmp_path / "own_environment.py").write_text((TUTORIALS / "own_environment.py").read_text())
    printed = [run(tmp_path, "bash", "-euc", command) for command in blocks("own-environment", "bash")]
    assert printed == blocks("own-environment", "text")


def test_other_language_shows_parts_of_the_example() -> None:
    folder = ROOT / "client" / "typescript" / "examples"
    source = without_indents("".join((folder / name).read_text() for name in ("cartpole.ts", "ppo.ts")))
    shown = blocks("other-language", "ts")
    assert len(shown) == 8
    assert [block for block in shown if without_indents(block) not in source] == []


def test_commands_of_the_team_name_services_and_files() -> None:
    commands = "".join(blocks("team", "bash"))
    started = re.findall(r" up .*?(\w+)$", commands, re.MULTILINE)
    assert {"grafana", "worker"} <= set(started)
    assert set(started) - {"detach"} <= SERVICES.keys()
    assert all((ROOT / name).exists() for name in re.findall(r"--file (\S+)", commands))
    assert "ROLLSERVE_PUBLISH" in str(SERVICES["gateway"]["ports"])
    assert "ROLLSERVE_NAMES" in SERVICES["secrets"]["environment"]


def test_commands_of_the_team_do_what_the_page_says(tmp_path: Path) -> None:
    """The script of the service `secrets` makes files; a server with the gateway's settings for them replaces it."""
    secrets, commands = tmp_path / "secrets", "".join(blocks("team", "bash"))
    for name in ("authority", "client", "cluster", "gateway", "grafana"):
        (secrets / name).mkdir(parents=True)
    script = tmp_path / "secrets.sh"
    script.write_text((ROOT / "deploy" / "secrets.sh").read_text().replace("cd /secrets", f"cd '{secrets}'"))
    docker = tmp_path / "docker"
    docker.write_text(DOCKER.replace("SCRIPT", str(script)).replace("FOLDER", str(secrets)))
    docker.chmod(0o755)
    run(tmp_path, "sh", script)
    settings = {
        name: value.replace("/secrets", str(secrets))
        for name, value in SERVICES["gateway"]["environment"].items()
        if name.startswith("ROLLSERVE_T")  # TLS and tokens
    }
    assert len(settings) == 4
    options = ("--env", "CartPole-v1", "--backend", "in-process")
    settings["ROLLSERVE_MAX_SAMPLERS"] = "4"
    commands = commands.replace("--scope env:free", "--scope env:free --scope 'sampler:admin@alice-*'")
    commands += "export ROLLSERVE_TOKEN_FILE=alice-token\npython - <<'END'\nimport rollserve\n"
    commands += "".join(blocks("team", "python")) + "END\nrollserve samplers localhost:50051\n"
    with local_server(*options, log=tmp_path / "log", environment=settings) as server:
        target = f"localhost:{server.address.rpartition(':')[2]}"
        commands = commands.replace("localhost:50051", target)
        printed = run(tmp_path, "bash", "-euc", f"PATH={tmp_path}:$PATH\nexec 2>&1\n{commands}")
    (refusal,) = blocks("team", "text")
    assert refusal.replace("localhost:50051", target) in printed
    assert printed.count("exit status 5") == 2
    assert printed.count("exit status") == 2
    assert (secrets / "grafana" / "password").read_text() in printed
    assert "alice-cheetah" in printed
