"""The types of examples, tutorials and the documentation's code: both checkers, as strict as they can be.

Code that imports what is not installed here, such as PyTorch, is left out; `make test-bridges` checks it, too.
"""

from __future__ import annotations

import ast
import builtins
import importlib.util
import json
import os
import re
import subprocess
import symtable
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMES = Path(__file__).with_name("names_in_docs.pyi")
PROGRAMS = [*ROOT.glob("examples/*.py"), *ROOT.glob("docs/tutorials/*.py")]
TUTORIALS = {program.stem.replace("_", "-") for program in PROGRAMS}  # they show the whole program
PAGES = [ROOT / "README.md", ROOT / "client" / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("docs/tutorials/*.md")]
BLOCK = re.compile(r"(?:<!-- file: (\S+) -->\n)?^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINES = {
    "ClipPPOLoss": "from torchrl.objectives import ClipPPOLoss",
    "GAE": "from torchrl.objectives.value import GAE",
    "Path": "from pathlib import Path",
    "asyncio": "import asyncio",
    "concurrent": "import concurrent.futures",
    "gymnasium": "import gymnasium",
    "jnp": "import jax.numpy as jnp",
    "multiprocessing": "import multiprocessing",
    "nn": "from torch import nn",
    "np": "import numpy as np",
    "rollserve": "import rollserve",
    "time": "import time",
    "torch": "import torch",
}
"""Lines that pages of the documentation leave out, by the name that they give."""
PARTLY_TYPED = ["jax", "jax2onnx", "matplotlib", "minari", "onnx", "pandas", "stable_baselines3", "torch", "torchrl"]
"""Libraries whose functions lack some types: nobody's code with them is without unknown types."""
KINDS = ("Argument", "Lambda", "Member", "Parameter", "Variable")
LIBRARY_RULES = ["reportMissingTypeStubs", *(f"reportUnknown{kind}Type" for kind in KINDS)]
NOTEBOOK_RULES = ["reportUnusedExpression", "reportUnusedVariable"]
"""Rules against code that is of no use in a program, and shows something in a notebook or on a page."""

EXPECTED = """
from collections.abc import Mapping
from typing import Any, assert_type

import numpy as np
import rollserve

def types(sampler: rollserve.Sampler, batch: rollserve.EpisodeBatch) -> None:
    assert_type(sampler.obtain_samples(1, seed=7), rollserve.EpisodeBatch)
    assert_type(sampler.multi_agent.obtain_samples(1), rollserve.MultiAgentBatch)
    assert_type(sampler.obtain_samples(1).account, rollserve.Account)
    assert_type(batch.observations, np.ndarray | Any)
    assert_type(rollserve.leaves_of(batch.observations), Mapping[str, np.ndarray])
    assert_type(batch.account.observation_moments, rollserve.RunningMoments | Any)

def mistakes(sampler: rollserve.Sampler, batch: rollserve.EpisodeBatch) -> None:
    print(batch.observations.shapes)  # type: ignore
    print(batch.last_values.shapes)  # type: ignore
    print(batch.account.observation_moments.means)  # type: ignore
    print(sampler.obtain_samples(1).by_policy())  # type: ignore
    print(sampler.multi_agent.obtain_samples(1).rewards)  # type: ignore
    sampler.obtain_samples(1, sed=7)  # type: ignore
    sampler.obtain_samples(1, seed="7")  # type: ignore

# pyright: reportUnnecessaryTypeIgnoreComment=true
"""
"""Program with the types of some expressions, and with mistakes: both checkers have to agree with each comment."""


def blocks() -> Iterator[tuple[str, str]]:
    """Yield a file name and the code for each block of the documentation."""
    for page in PAGES:
        text = page.read_text() if page.stem not in TUTORIALS else ""
        for found in BLOCK.finditer(text):
            place = f"{page.relative_to(ROOT)}:{text.count(chr(10), 0, found.start(2)) + 1}"
            yield found[1] or re.sub(r"\W", "_", place) + ".py", f"# {place}\n{with_names(found[2])}"


def with_names(code: str) -> str:
    """Return a block behind lines for the names that it uses and its page takes for granted."""
    tree = compile(code, "block", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if any(isinstance(node, ast.AsyncWith) for node in tree.body):
        code = f"async def main() -> None:\n{textwrap.indent(code, '    ')}"
    module = symtable.symtable(code, "block", "exec")
    tables = [module]
    for table in tables:
        tables += table.get_children()
    is_used_first = {name: is_use for _, name, is_use in sorted(names_of(tree), reverse=True)}
    symbols = module.get_symbols()
    bound = {each.get_name() for each in symbols if each.is_assigned() and not is_used_first.get(each.get_name())}
    bound |= {each.get_name() for each in symbols if each.is_imported()} | vars(builtins).keys()
    names = {each.get_name() for table in tables for each in table.get_symbols() if each.is_global()} - bound
    return "\n".join([*(LINES.get(name, f"from {NAMES.stem} import {name}") for name in sorted(names)), code])


def names_of(tree: ast.AST) -> Iterator[tuple[int, str, bool]]:
    """Yield the line, the name, and whether it is used, for each name that code outside functions uses or binds."""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.Name():
                yield node.lineno, node.id, isinstance(node.ctx, ast.Load)
            case ast.ExceptHandler(name=str(name)) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name, False
        if not isinstance(node, ast.FunctionDef):
            yield from names_of(node)


def packages(code: str) -> set[str]:
    """Return the packages that code imports."""
    nodes = list(ast.walk(ast.parse(code)))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all code that can be checked here, and the settings of both checkers."""
    made = tmp_path_factory.mktemp("code")
    codes = {program.name: program.read_text() for program in PROGRAMS}
    shown = dict(blocks())
    own = {NAMES.stem, *(Path(name).stem for name in codes | shown)}
    for name, code in {**codes, **shown}.items():
        needed = packages(code) - own
        if all(map(importlib.util.find_spec, needed)):
            rules = [*NOTEBOOK_RULES] if name in shown else []
            rules += LIBRARY_RULES if needed.intersection(PARTLY_TYPED) else []
            (made / name).write_text("".join([f"{code}\n", *(f"# pyright: {rule}=false\n" for rule in rules)]))
    (made / NAMES.name).write_text(NAMES.read_text())
    (made / "expected.py").write_text(EXPECTED)
    (made / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "strict"}))
    exclude = f"untyped_calls_exclude = {', '.join(PARTLY_TYPED)}\n"
    ignore = f"[mypy-{','.join(f'{library}.*' for library in PARTLY_TYPED)}]\nignore_missing_imports = true\n"
    (made / "mypy.ini").write_text(f"[mypy]\nstrict = true\n{exclude}{ignore}")
    return made


def check(folder: Path, *command: str) -> None:
    shown = subprocess.run(
        [sys.executable, "-m", *command, "."], cwd=folder, capture_output=True, text=True, check=False
    )
    assert shown.returncode == 0, shown.stdout + shown.stderr


def test_mypy_finds_nothing(folder: Path) -> None:
    check(folder, "mypy", "--cache-dir", os.devnull)


def test_pyright_finds_nothing(folder: Path) -> None:
    check(folder, "basedpyright", "--pythonpath", sys.executable, "--level", "error")
