"""Print the requirements of a distribution, one a line, without Rollserve's own.

python requirements.py server atari,mujoco
"""

import sys
import tomllib
from pathlib import Path


def requirements(project: dict[str, object], extras: str) -> list[str]:
    """Return the requirements of a project with some extras.

    Args:
        project: the table `project` of its pyproject.toml.
        extras: names of extras, with commas between them.

    Raises:
        SystemExit: the project has no such extra.
    """
    found = list(project["dependencies"])
    optional = project.get("optional-dependencies", {})
    for extra in filter(None, extras.split(",")):
        if extra not in optional:
            sys.exit(f"EXTRAS: expected {', '.join(optional)}, got {extra}")
        found += optional[extra]
    return [requirement for requirement in found if not requirement.startswith("rollserve")]


if __name__ == "__main__":
    folder, *rest = sys.argv[1:]
    table = tomllib.loads(Path(folder, "pyproject.toml").read_text())["project"]
    print(*requirements(table, "".join(rest)), sep="\n")
