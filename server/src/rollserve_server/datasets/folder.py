"""The folder with datasets that the operator allows, and which paths in it requests may name."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from rollserve_server.errors import InvalidValueError, NotAllowedError, NotFoundError, shorten
from rollserve_wire.reasons import Reason

__all__ = ["DataFolder", "HeldFiles"]

_ID = re.compile(r"(?:[-\w]+/)*[-\w]+-v\d+", re.ASCII)
"""Ids of datasets, as Minari has them."""
_MAX_PATHS, _MAX_SHOWN = 1024, 200
_EXPECTED = "a relative path that stays in the folder of datasets, without `..` and links that leave it"


class DataFolder:
    """The folder of `--data-dir`. No method looks at files, which may take long: processes for datasets do."""

    def __init__(self, path: Path | None) -> None:
        """Allow the paths in a folder, or none at all."""
        # Absolute, because errors of the files begin with it.
        self._path = None if path is None else path.absolute()

    @property
    def root(self) -> str:
        """The folder, as errors of the files begin; empty without one."""
        return "" if self._path is None else str(self._path)

    def dataset(self, dataset_id: str) -> Path:
        """Return the folder of a dataset to record, which need not exist.

        Raises:
            InvalidValueError: the text is no id of Minari's.
            NotAllowedError: there is no folder for datasets, or the path is none within it.
        """
        path = self._allowed("dataset", dataset_id)
        if not _ID.fullmatch(dataset_id):
            expected = "an id such as `cartpole/expert-v0`: names with `/` between them, and `-v` with a number"
            raise InvalidValueError.of("dataset", expected=expected, got=repr(shorten(dataset_id, _MAX_SHOWN)))
        return path

    def files(self, paths: Sequence[str]) -> list[Path]:
        """Return the paths of files or folders to read, which `HeldFiles` checks.

        Raises:
            InvalidValueError: there are none, or too many.
            NotAllowedError: there is no folder for datasets, or a path is none within it.
        """
        if not 1 <= len(paths) <= _MAX_PATHS:
            raise InvalidValueError.of("paths", expected=f"from 1 to {_MAX_PATHS} paths", got=len(paths))
        return [self._allowed(f"paths[{position}]", text) for position, text in enumerate(paths)]

    def _allowed(self, field: str, text: str) -> Path:
        """Return the path that a text names in the folder."""
        if self._path is None:
            expected = "none, because the server's operator allows no folder for datasets (option --data-dir)"
            raise _not_allowed(field, text, expected)
        relative = PurePosixPath(text)
        if not text or "\0" in text or relative.is_absolute() or ".." in relative.parts:
            raise _not_allowed(field, text)
        return self._path / relative


class HeldFiles:
    """Files that the folder holds, looked at by a process for a dataset."""

    def __init__(self, root: str) -> None:
        """Check paths that `DataFolder` has allowed in this folder."""
        self._root = root
        self._real_root = os.path.realpath(root)
        self._held: set[str] = set()

    def check(self, field: str, path: str, *, exists: bool) -> None:
        """Check that a path, and all links in it, lead to no file outside; what was checked before is not read again.

        Raises:
            NotAllowedError: a link leads out of the folder.
            NotFoundError: the path does not exist, and has to.
        """
        if path in self._held:
            return
        text = os.path.relpath(path, self._root)
        links = [path]
        for folder, folders, files in os.walk(path):
            links += filter(os.path.islink, (os.path.join(folder, name) for name in (*folders, *files)))
        if not all(map(self._holds, links)):
            raise _not_allowed(field, text)
        if exists and not os.path.exists(path):
            expected, got = "a path that exists in the folder of datasets", repr(shorten(text, _MAX_SHOWN))
            raise NotFoundError.of(field, expected=expected, got=got, reason=Reason.DATASET_NOT_FOUND)
        self._held.add(path)

    def _holds(self, path: str) -> bool:
        return Path(os.path.realpath(path)).is_relative_to(self._real_root)


def _not_allowed(field: str, text: str, expected: str = _EXPECTED) -> NotAllowedError:
    got = repr(shorten(text, _MAX_SHOWN))
    return NotAllowedError.of(field, expected=expected, got=got, reason=Reason.PATH_NOT_ALLOWED)
