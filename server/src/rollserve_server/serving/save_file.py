"""The file that the default sampler is saved to, so that another server goes on with it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import tempfile
import time
from collections.abc import AsyncGenerator, Collection
from pathlib import Path
from typing import TYPE_CHECKING

from rollserve_server.errors import DomainError, InvalidValueError, within
from rollserve_server.gateway import read_saved_file
from rollserve_server.pool import saved_sampler_parts

if TYPE_CHECKING:
    from rollserve_server.metrics import Metrics
    from rollserve_server.pool import Pool, SavedSampler
    from rollserve_server.settings import Settings

__all__ = ["SaveFile"]

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
"""How often to look whether there was an update."""
_REST_FACTOR = 10.0
"""Time between a save and the next one, as a multiple of how long it took."""


class SaveFile:
    """A file for a sampler. It always has a whole one: another one replaces it at once, or not at all."""

    def __init__(self, path: Path | None, seconds: float) -> None:
        """Take the path of the file, None for no file, and the time between two saves."""
        self._path, self._seconds = path, seconds

    @classmethod
    def of(cls, settings: Settings) -> SaveFile:
        """Return the file that the settings name."""
        return cls(settings.process.save_path, settings.process.save_every)

    def read(self, allowed_paths: Collection[Path]) -> SavedSampler | None:
        """Return the saved sampler; None if there is no file.

        Args:
            allowed_paths: paths that arguments of environments and agents may have.

        Raises:
            DomainError: the file cannot be read, or has no saved sampler.
        """
        if self._path is None or not self._path.exists():
            return None
        with within("save_path"):
            try:
                data = self._path.read_bytes()
            except OSError as error:
                raise InvalidValueError.of("", expected="a file that can be read", got=str(error)) from None
            return read_saved_file(data, allowed_paths)

    @contextlib.asynccontextmanager
    async def saving(self, pool: Pool, metrics: Metrics) -> AsyncGenerator[None, None]:
        """Save a sampler from time to time during the block."""
        task = asyncio.create_task(self._save_often(pool, metrics))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def save(self, pool: Pool, metrics: Metrics) -> None:
        """Save a sampler, or log why it cannot be saved; count both."""
        if self._path is None:
            return
        is_saved = False
        try:
            await asyncio.to_thread(_write, self._path, await pool.save())
        except (DomainError, OSError) as error:
            _log.error("sampler not saved", extra={"path": self._path, "error": str(error)})
        except Exception:  # whatever it is: later saves go on
            _log.exception("sampler not saved", extra={"path": self._path})
        else:
            is_saved = True
            _log.debug("sampler saved", extra={"path": self._path})
        metrics.count_save(is_saved=is_saved)

    async def _save_often(self, pool: Pool, metrics: Metrics) -> None:
        """Save whenever the time between two saves is over, and soon after each update."""
        look_seconds = min(_LOOK_SECONDS, self._seconds)
        while self._path is not None:
            began, versions = time.monotonic(), pool.versions
            await asyncio.shield(self.save(pool, metrics))
            await asyncio.sleep(max(look_seconds, _REST_FACTOR * (time.monotonic() - began)))
            while pool.versions == versions and time.monotonic() < began + self._seconds:  # noqa: ASYNC110  # cheap
                await asyncio.sleep(look_seconds)


def _write(path: Path, saved: SavedSampler) -> None:
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}-", delete=False) as file:
        try:
            file.writelines(saved_sampler_parts(saved))
            file.flush()
            os.fsync(file.fileno())  # before the new name, so that a crash of the machine leaves a whole file
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink()
            raise
