"""The file that names the server's port."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from rollserve.errors import mismatch

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["port_file"]


@contextlib.contextmanager
def port_file(path: Path | None) -> Iterator[Callable[[int], None]]:
    """Yield the function that writes the port into the file, and remove the file at the end of the block.

    An earlier server's file is removed at once. The file appears with all of its content. Without a path, the function
    does nothing.

    Raises:
        OSError: the file cannot be written.
    """
    if path is None:
        yield lambda port: None
        return
    unfinished = path.parent / f".{path.name}.{os.getpid()}"

    def write(port: int) -> None:
        with _naming(path):
            unfinished.write_text(f"{port}\n")
            unfinished.replace(path)

    try:
        with _naming(path):
            path.unlink(missing_ok=True)  # of an earlier server
            unfinished.write_text("none\n")  # so that a full disk shows now
            unfinished.unlink()
        yield write
    finally:
        for leftover in (unfinished, path):
            with contextlib.suppress(OSError):
                leftover.unlink()


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name the setting in errors about the file."""
    try:
        yield
    except OSError as error:
        text = mismatch("a file that can be written", path, error.strerror or "")
        raise OSError(f"port_file: {text}") from None
