"""`rollserve-server backup`: archives of folders, whole, cut off and changed."""

from __future__ import annotations

import io
import os
import stat
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

FILES = {
    "saved/sampler.saved": b"\0\1\2" * 100_000,
    "gateway-secrets/tokens.json": b"{}",
    "data/test/cartpole-v0/data/main_data.hdf5": b"HDF" * 7,
    "data/empty": b"",
}


WITHOUT_FILTER = (
    "import runpy as r, tarfile as t; del t.data_filter; r.run_module('rollserve_server', run_name='__main__')"
)
"""Python before 3.11.4 has no filters of what archives extract."""


def backup(*arguments: object, data: bytes = b"", has_filter: bool = True) -> subprocess.CompletedProcess[bytes]:
    program = ["-m", "rollserve_server"] if has_filter else ["-W", "ignore", "-c", WITHOUT_FILTER]
    command = [sys.executable, *program, "backup", *map(str, arguments)]
    return subprocess.run(command, input=data, capture_output=True, check=False)


@pytest.fixture
def volumes(tmp_path: Path) -> Path:
    folder = tmp_path / "volumes"
    for name, content in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (folder / "gateway-secrets/tokens.json").chmod(0o600)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def others(tmp_path: Path) -> Path:
    """Folders of another deployment, with something in them."""
    folder = tmp_path / "others"
    for name in ("saved", "gateway-secrets", "data", "audit"):
        (folder / name).mkdir(parents=True)
        (folder / name / "old").write_text("old")
    return folder


@pytest.mark.parametrize("has_filter", [True, False])
def test_archive_brings_folders_back(volumes: Path, others: Path, has_filter: bool) -> None:
    created = backup("create", volumes)
    assert created.returncode == 0, created.stderr
    restored = backup("restore", others, data=created.stdout, has_filter=has_filter)
    assert restored.returncode == 0, restored.stderr
    assert contents(others) == {**FILES, "audit/old": b"old"}
    assert stat.S_IMODE(os.stat(others / "gateway-secrets/tokens.json").st_mode) == 0o600
    assert b"4 files" in restored.stderr


@pytest.mark.parametrize("kind", ["cut off", "changed", "empty", "no archive"])
def test_archive_that_is_not_whole_changes_nothing(volumes: Path, others: Path, kind: str) -> None:
    archive = backup("create", volumes).stdout
    at = archive.index(b"HDFHDF")
    data = {
        "cut off": archive[:at],
        "changed": archive[:at] + b"hdf" + archive[at + 3 :],
        "empty": b"",
        "no archive": b"x" * 20_000,
    }[kind]
    before = contents(others)
    restored = backup("restore", others, data=data)
    assert restored.returncode == 1
    assert b"nothing is restored" in restored.stderr
    assert contents(others) == before


@pytest.mark.parametrize("has_filter", [True, False])
@pytest.mark.parametrize(
    "member", [("saved/../../beyond", tarfile.REGTYPE, ""), ("saved/link", tarfile.SYMTYPE, "../../../beyond")]
)
def test_archive_writes_nothing_beyond_its_folders(
    others: Path, member: tuple[str, bytes, str], has_filter: bool
) -> None:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        info = tarfile.TarInfo(member[0])
        info.type, info.linkname = member[1:]
        archive.addfile(info)
    before = contents(others.parent)
    restored = backup("restore", others, data=data.getvalue(), has_filter=has_filter)
    assert restored.returncode == 1
    assert b"nothing is restored" in restored.stderr
    assert contents(others.parent) == before
    assert b"ends early" not in restored.stderr  # which is found later


@pytest.mark.parametrize("is_link", [True, False])
def test_archive_has_nothing_beside_its_folders(volumes: Path, others: Path, is_link: bool) -> None:
    if is_link:
        (volumes / "beside").symlink_to(others)
    else:
        (volumes / "beside").write_bytes(b"1")
    created = backup("create", volumes)
    assert (created.returncode, created.stdout) == (2, b"")
    assert b"FOLDER: expected folders alone, got 'beside'" in created.stderr


def test_archive_needs_its_folders(volumes: Path, others: Path) -> None:
    archive = backup("create", volumes).stdout
    for path in (others / "data").iterdir():
        path.unlink()
    (others / "data").rmdir()
    before = contents(others)
    restored = backup("restore", others, data=archive)
    assert restored.returncode == 1
    assert b"'data'" in restored.stderr
    assert contents(others) == before
