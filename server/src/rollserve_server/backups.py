"""The command line of `rollserve-server backup`: folders of a deployment as one archive, and back."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import io
import json
import os
import shutil
import sys
import tarfile
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

import click

from rollserve_server import __version__

__all__ = ["backup_command"]

_MANIFEST = "rollserve-backup.json"
"""Name of the archive's last member, with the size and SHA-256 of each file. An archive without it is incomplete."""
_FORMAT = 1
_NEW = ".restoring"
"""Folder, in each folder that is restored, for what is not checked yet."""
_FOLDER = click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))


@click.group("backup")
def backup_command() -> None:
    """Write the folders in a folder to one archive, and restore them.

    An archive has the SHA-256 of each file. It has what the folders have, secrets included: keep it as safe as these.
    """


@backup_command.command("create")
@_FOLDER
def _create(folder: Path) -> None:
    """Write the folders in FOLDER to standard output, as a tar archive. FOLDER has no files beside them.

    A server may go on meanwhile: it replaces saved samplers as a whole. A dataset that is being recorded is copied as
    far as it has come.
    """
    if sys.stdout.isatty():
        raise click.ClickException("expected a file or a pipe for the archive, got a terminal")
    if others := sorted(path.name for path in folder.iterdir() if path.is_symlink() or not path.is_dir()):
        raise click.UsageError(f"FOLDER: expected folders alone, got {others[0]!r}, a file or link, in {folder}")
    files: dict[str, Any] = {}
    try:
        with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as archive:
            for path in sorted(folder.rglob("*")):
                name = path.relative_to(folder).as_posix()
                if _NEW not in path.parts and (path.is_dir() or path.is_file()) and not path.is_symlink():
                    with contextlib.suppress(FileNotFoundError):  # replaced meanwhile
                        _add(archive, path, name, files)
            created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            about = {"format": _FORMAT, "software": __version__, "created": created, "files": files}
            manifest = json.dumps(about, indent=1).encode()
            info = tarfile.TarInfo(_MANIFEST)
            info.size, info.mode = len(manifest), 0o600
            archive.addfile(info, io.BytesIO(manifest))
        sys.stdout.buffer.flush()
    except OSError as error:
        raise click.ClickException(f"the backup is incomplete: {error}") from None
    click.echo(f"{len(files)} files of {folder}", err=True)


@backup_command.command("restore")
@_FOLDER
def _restore(folder: Path) -> None:
    """Replace what the folders in FOLDER have by an archive from standard input, once all of it is checked.

    Each folder of the archive has to exist. Others stay as they are. No server may use them meanwhile.
    """
    places: set[Path] = set()
    try:
        try:
            found = _extracted(folder, sys.stdin.buffer, places)
        except (OSError, tarfile.TarError, ValueError) as error:
            raise click.ClickException(f"expected a whole backup, got {error}: nothing is restored") from None
        for place in places:
            for path in place.parent.iterdir():
                if path != place:
                    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            for path in place.iterdir():
                path.rename(place.parent / path.name)
    except OSError as error:
        raise click.ClickException(f"only a part is restored: {error}; restore it again") from None
    finally:
        for place in places:
            shutil.rmtree(place, ignore_errors=True)
    click.echo(f"{len(found['files'])} files, of {found['created']} by version {found['software']}", err=True)


def _add(archive: tarfile.TarFile, path: Path, name: str, files: dict[str, Any]) -> None:
    info = archive.gettarinfo(path, name)
    if not info.isreg():
        archive.addfile(info)
        return
    with path.open("rb") as file:
        info.size = os.fstat(file.fileno()).st_size  # of the file that is open, whatever has replaced it
        reader = _Hashing(file, info.size)
        archive.addfile(info, cast("IO[bytes]", reader))
    files[name] = {"bytes": info.size, "sha256": reader.digest.hexdigest()}


class _Hashing:
    """Reads so many bytes of a file, and computes their digest. Missing ones are zeros: the file was shortened."""

    def __init__(self, file: IO[bytes], num_bytes: int) -> None:
        self._file, self._left = file, num_bytes
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        wanted = self._left if size < 0 else min(size, self._left)
        data = self._file.read(wanted).ljust(wanted, b"\0")
        self._left -= len(data)
        self.digest.update(data)
        return data


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, place: Path) -> None:
    """Extract a member, whatever its name is, to nowhere but a folder.

    Raises:
        ValueError: this Python, before 3.11.4, cannot do so with links and the like.
        tarfile.TarError: the member would go elsewhere.
    """
    if hasattr(tarfile, "data_filter"):
        archive.extract(member, place, filter="data")
        return
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts or not (member.isreg() or member.isdir()):
        raise ValueError(f"{member.name!r}, which Python extracts from 3.11.4 on")
    archive.extract(member, place)


def _extracted(folder: Path, source: IO[bytes], places: set[Path]) -> dict[str, Any]:
    """Extract an archive beside the present contents of its folders; return its manifest.

    Raises:
        ValueError: the archive is incomplete or was changed, or there is no such folder.
    """
    digests: dict[str, Any] = {}
    manifest: dict[str, Any] | None = None
    with tarfile.open(fileobj=source, mode="r|*") as archive:
        for member in archive:
            if member.name == _MANIFEST:
                content = archive.extractfile(member)
                manifest = json.loads(content.read()) if content is not None else None
                continue
            top, _, rest = member.name.partition("/")
            if not (folder / top).is_dir() or top in ("", ".", ".."):
                raise ValueError(f"the folder {top!r}, which {folder} does not have")
            place = folder / top / _NEW
            if place not in places:
                shutil.rmtree(place, ignore_errors=True)
                place.mkdir()
                places.add(place)
            if rest:
                name, member.name = member.name, rest
                _extract(archive, member, place)
                if member.isreg():
                    with (place / rest).open("rb") as file:
                        digests[name] = {
                            "bytes": member.size,
                            "sha256": hashlib.file_digest(file, "sha256").hexdigest(),
                        }
    if manifest is None:
        raise ValueError("one that ends early")
    if manifest.get("format") != _FORMAT:
        raise ValueError(f"one of format {manifest.get('format')}, which this version does not read")
    wrong = [
        name for name in digests.keys() | manifest["files"].keys() if digests.get(name) != manifest["files"].get(name)
    ]
    if wrong:
        raise ValueError(f"other contents of {min(wrong)}")
    return manifest
