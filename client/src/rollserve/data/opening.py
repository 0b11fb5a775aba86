"""Files of a data set: which there are, and which format they have."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from rollserve._formats.d4rl import D4rlSource
from rollserve._formats.minari import MinariSource
from rollserve._formats.parquet import ParquetSource
from rollserve._formats.rllib_json import RllibJsonSource
from rollserve.data.own_files import OwnSource
from rollserve_wire.checks import check_choice, type_error
from rollserve_wire.errors import InvalidArgumentError, mismatch

if TYPE_CHECKING:
    from rollserve._formats.sources import Source

__all__ = ["Format", "open_source"]

Format = Literal["minari", "d4rl", "rllib-json", "parquet", "rollserve"]
"""A format of files, as `read` takes it."""

_STARTS: dict[bytes, Format] = {b"PK\x03\x04": "rollserve", b"\x89HDF": "d4rl", b"PAR1": "parquet", b"{": "rllib-json"}
"""Formats by the first bytes of their files."""
_METADATA = "metadata.json"
_MAX_SHOWN = 4
"""Datasets of a folder that an error names."""


def open_source(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    file_format: Format | None,
    infos: bool,
    dones: str | None,
) -> Source:
    """Return the source of a path; see `read`."""
    paths = _paths(path)
    if file_format is not None:
        check_choice("format", file_format, get_args(Format))
    if dones is not None:
        check_choice("dones", dones, ("terminated", "truncated"))
    if len(paths) == 1 and paths[0].is_dir() and _is_minari(paths[0]) and file_format in (None, "minari"):
        return MinariSource(paths[0], infos=infos)
    datasets = [each for each in paths if each.is_dir() and _is_minari(each)]
    if datasets and len(paths) > 1:
        expected = "the folder of one Minari dataset, or other files"
        raise InvalidArgumentError.of("path", expected=expected, got=f"{datasets[0]} and others")
    files = [file for each in paths for file in (_files_in(each) if each.is_dir() else [each])]
    if not files:
        raise InvalidArgumentError.of("path", expected="a dataset, or at least one file", got=_described(paths))
    formats = {file: file_format or _format_of(file) for file in files}
    if len(set(formats.values())) > 1:
        listed = ", ".join(f"{file.name} ({found})" for file, found in list(formats.items())[:4])
        raise InvalidArgumentError.of("path", expected="files of one format", got=listed)
    match formats[files[0]]:
        case "rollserve":
            return OwnSource(files, infos=infos)
        case "parquet":
            return ParquetSource(files, infos=infos, dones=dones)
        case "rllib-json":
            return RllibJsonSource(files, infos=infos, dones=dones)
        case "d4rl" if len(files) == 1:
            return D4rlSource(files[0], infos=infos)
        case "d4rl":
            raise InvalidArgumentError.of("path", expected="one file of D4RL", got=f"{len(files)} files")
        case _:
            raise InvalidArgumentError.of("path", expected="the folder of one Minari dataset", got=paths)


def _paths(path: Any) -> list[Path]:
    if isinstance(path, str | os.PathLike):
        return [Path(path)]
    if not isinstance(path, Sequence) or not all(isinstance(each, str | os.PathLike) for each in path):
        raise type_error("path", "a path or a sequence of paths", path)
    return [Path(each) for each in path]


def _described(paths: Sequence[Path]) -> str:
    """Return what is in paths without files, with the datasets that a folder of several has."""
    if not paths:
        return "no path"
    found = [each.relative_to(paths[0]) for each in sorted(paths[0].iterdir()) if each.is_dir() and _is_minari(each)]
    got = f"folders without files: {', '.join(map(str, paths))}"
    return f"{got}; {paths[0]} has the datasets {', '.join(map(str, found[:_MAX_SHOWN]))}" if found else got


def _is_minari(folder: Path) -> bool:
    return (folder / _METADATA).is_file() or (folder / "data" / _METADATA).is_file()


def _files_in(folder: Path) -> list[Path]:
    """Return the files of a folder in the order of their names, without hidden ones."""
    return sorted(file for file in folder.iterdir() if file.is_file() and not file.name.startswith((".", "_")))


def _format_of(file: Path) -> Format:
    with open(file, "rb") as opened:
        start = opened.read(8)
    for beginning, found in _STARTS.items():
        if start.lstrip().startswith(beginning) or start.startswith(beginning):
            return found
    expected = "a file of Rollserve, Parquet, HDF5 or JSON"
    raise ValueError(f"{file}: {mismatch(expected, f'one that begins with {start!r}')}")
