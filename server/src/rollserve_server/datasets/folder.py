"""The folder with datasets that the operator allows, and which paths in it requests may name."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from rollserve import Reason
from rollserve_server.errors import InvalidValueError, NotAllowedError, NotFoundError, shorten

__all__ = ["DataFolder"]

_ID = re.compile(r"(?:[-\w]+/)*[-\w]+-v\d+", re.ASCII)
"""Ids of datasets, as Minari has them."""
_MAX_PATHS, _MAX_SHOWN = 1024, 200


class DataFolder:
    """The folder of `--data-dir`."""

    def __init__(self, path: Path | None) -> None:
        """Allow the paths in a folder, or none at all."""
        # Absolute, so that errors of the files can be told from it.
        self._path = None if path is None else path.absolute()

    @property
    def root(self) -> str:
        """The folder, as errors of the files begin; empty without one."""
        return "" if self._path is None else str(self._path)

    def dataset(self, dataset_id: str) -> Path:
        """Return the folder of a dataset to record, which need not exist.

        Raises:
            InvalidValueError: the text is no id of Minari's.
            NotAllowedError: there is no folder for datasets, or the path leads out of it.
        """
        path = self._allowed("dataset", dataset_id)
        if not _ID.fullmatch(dataset_id):
            expected = "an id such as `cartpole/expert-v0`: names with `/` between them, and `-v` with a number"
            raise InvalidValueError.of("dataset", expected=expected, got=repr(shorten(dataset_id, _MAX_SHOWN)))
        return path

    def files(self, paths: Sequence[str]) -> list[Path]:
        """Return the paths of files or folders to read.

        Raises:
            InvalidValueError: there are none, or too many.
            NotAllowedError: there is no folder for datasets, or a path leads out of it.
            NotFoundError: a path does not exist.
        """
        if not 1 <= len(paths) <= _MAX_PATHS:
            raise InvalidValueError.of("paths", expected=f"from 1 to {_MAX_PATHS} paths", got=len(paths))
        found = []
        for position, text in enumerate(paths):
            field = f"paths[{position}]"
            path = self._allowed(field, text)
            if not os.path.exists(path):  # unlike pathlib's, also False for a name that is too long for files
                got, reason = repr(shorten(text, _MAX_SHOWN)), Reason.DATASET_NOT_FOUND
                raise NotFoundError.of(
                    field, expected="a path that exists in the folder of datasets", got=got, reason=reason
                )
            found.append(path)
        return found

    def _allowed(self, field: str, text: str) -> Path:
        """Return the path that a text names in the folder; of the files that it leads to, none may be outside."""
        reason, got = Reason.PATH_NOT_ALLOWED, repr(shorten(text, _MAX_SHOWN))
        if self._path is None:
            expected = "none, because the server's operator allows no folder for datasets (option --data-dir)"
            raise NotAllowedError.of(field, expected=expected, got=got, reason=reason)
        relative = PurePosixPath(text)
        if not text or "\0" in text or relative.is_absolute() or ".." in relative.parts or not self._holds(relative):
            expected = "a relative path that stays in the folder of datasets, without `..` and links that leave it"
            raise NotAllowedError.of(field, expected=expected, got=got, reason=reason)
        return self._path / relative

    def _holds(self, relative: PurePosixPath) -> bool:
        assert self._path is not None  # noqa: S101
        root = os.path.realpath(self._path)
        path = Path(self._path, relative)
        found = [str(path)]
        for folder, folders, files in os.walk(path):
            found += [os.path.join(folder, name) for name in (*folders, *files)]
        return all(Path(os.path.realpath(each)).is_relative_to(root) for each in found)
