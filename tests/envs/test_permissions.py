"""Permissions of modules: exact names, and packages with their submodules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pools import pool_of
from support import raises

from rollserve import EnvSpec, Reason
from rollserve_server.errors import NotAllowedError, NotFoundError
from rollserve_server.pool import InProcessBackend

MODULE = """
from sample_envs import Ends
with open({log!r}, "a") as log:
    log.write(__name__ + "\\n")
"""


@pytest.fixture
def imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Return the imports so far from a package `mazes` with the submodules `small`, `small.deep` and `__main__`."""
    imported = tmp_path / "imported"
    imported.touch()
    for name in ("mazes", "mazes/small", "mazes/small/deep"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(MODULE.format(log=str(imported)))
    (tmp_path / "mazes" / "__main__.py").write_text(MODULE.format(log=str(imported)))
    monkeypatch.syspath_prepend(tmp_path)
    return lambda: imported.read_text().splitlines()


@pytest.mark.parametrize(
    ("allowed", "module"),
    [
        ("mazes", "mazes.small"),
        ("mazes", "mazes.__main__"),
        ("mazes.*", "mazes"),
        ("mazes.*", "mazes.__main__"),
        ("mazes.small", "mazes.small.deep"),
        ("mazes.s*", "mazes.small"),
        ("*", "mazes"),
    ],
)
async def test_modules_without_permission_are_not_imported(
    imports: Callable[[], list[str]], allowed: str, module: str
) -> None:
    async with pool_of(InProcessBackend(), workers=1, allow_module=(allowed,)) as pool:
        before = pool.status().env_version
        with raises(NotAllowedError, field="all_workers.environment.id", reason=Reason.MODULE_NOT_ALLOWED):
            await pool.update_env([EnvSpec(f"{module}:Ends")])
        assert pool.status().env_version == before
    assert not imports()


@pytest.mark.parametrize(
    ("allowed", "module"),
    [("mazes.small", "mazes.small"), ("mazes.*", "mazes.small"), ("mazes.*", "mazes.small.deep")],
)
async def test_modules_with_permission_are_imported(
    imports: Callable[[], list[str]], allowed: str, module: str
) -> None:
    async with pool_of(InProcessBackend(), workers=1, allow_module=(allowed,)) as pool:
        await pool.update_env([EnvSpec(f"{module}:Ends")])
    assert module in imports()


async def test_unknown_submodules_of_an_allowed_package_are_not_found(imports: object) -> None:
    async with pool_of(InProcessBackend(), workers=1, allow_module=("mazes.*",)) as pool:
        with raises(NotFoundError, reason=Reason.MODULE_NOT_FOUND, quotes="'mazes.nothing'"):
            await pool.update_env([EnvSpec("mazes.nothing:Ends")])


async def test_refusal_lists_each_allowed_module_once() -> None:
    async with pool_of(InProcessBackend(), workers=1, allow_module=("mazes", "mazes")) as pool:
        with raises(NotAllowedError, match=r"--allow-module: 'mazes'\)"):
            await pool.update_env([EnvSpec("os:system")])
