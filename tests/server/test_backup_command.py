"""`rollserve-server backup`: archives of folders, whole, cut off and changed."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

FILES = {
    "saved/sampler.saved": b"\0\1\2" * 100_000,
    "gateway-secrets/tokens.json": b"{}",
    "data/test/cartpole-v0/data/main_data.hdf5": b"HDF" * 7,
    "data/empty": b"",
}


def backup(*arguments: object, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "rollserve_server", "backup", *map(str, arguments)]
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


def test_archive_brings_folders_back(volumes: Path, others: Path) -> None:
    created = backup("create", volumes)
    assert created.returncode == 0, created.stderr
    restored = backup("restore", others, data=created.stdout)
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
