"""The file that names the server's port."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rollserve_wire.errors import mismatch

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType
    from typing import Self

__all__ = ["PortFile"]


class PortFile:
    """A file that has the port while the server listens there. A context manager, which removes the file at the end."""

    def __init__(self, path: Path | None) -> None:
        """Remove an earlier server's file.

        Args:
            path: path of the file; None for no file.

        Raises:
            OSError: the file cannot be written.
        """
        self._path = path
        self._unfinished = path and path.parent / f".{path.name}.{os.getpid()}"
        if path is not None and self._unfinished is not None:
            with _naming(path):
                path.unlink(missing_ok=True)
                try:
                    self._unfinished.write_text("none\n")  # so that a full disk shows now
                finally:
                    self._unfinished.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.remove()

    def write(self, port: int) -> None:
        """Write the port. The file appears with all of its content.

        Raises:
            OSError: the file cannot be written.
        """
        if self._path is not None and self._unfinished is not None:
            with _naming(self._path):
                self._unfinished.write_text(f"{port}\n")
                self._unfinished.replace(self._path)

    def remove(self) -> None:
        """Remove the file. May be called more than once, and from any thread."""
        for path in (self._unfinished, self._path):
            if path is not None:
                with contextlib.suppress(OSError):
                    path.unlink()


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name the setting in errors about the file."""
    try:
        yield
    except OSError as error:
        text = mismatch("a file that can be written", path, error.strerror or "")
        raise OSError(f"port_file: {text}") from None
