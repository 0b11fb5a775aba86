"""Rollserve's own files, which `EpisodeBatch.save` writes."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rollserve._codec.column_files import load_column
from rollserve._formats.sources import Source, file_error
from rollserve.episode_batch import EpisodeBatch
from rollserve_wire.columns import COLUMNS, ENV_INFOS
from rollserve_wire.errors import mismatch

__all__ = ["OwnSource"]


class OwnSource(Source):
    """Segments of saved batches, whose units are segments. A file is read as a whole, and checked by its checksums.

    Args:
        paths: the files.
        infos: whether to read infos of environments.

    Raises:
        ValueError: a file that holds no batch.
    """

    def __init__(self, paths: Sequence[Path], *, infos: bool) -> None:
        super().__init__(paths)
        self._paths, self._infos = paths, infos
        self.missing = {}
        counts, receipts = [], []
        for path in paths:
            with file_error(path, "a saved batch"), open(path, "rb") as file:
                lengths = load_column(file, "lengths")
                if lengths is None:
                    raise ValueError(f"lengths: {mismatch('a column', 'none')}")
                counts.append(len(lengths))
                receipt = load_column(file, "receipt")
                receipts += [] if receipt is None else [receipt.tobytes().decode()]
        self._firsts = [0, *itertools.accumulate(counts)]
        self.receipts = receipts
        self.chunks = [range(low, high) for low, high in itertools.pairwise(self._firsts) if low < high]

    def _read(self, units: Sequence[int]) -> list[dict[str, Any]]:
        index = bisect.bisect(self._firsts, units[0]) - 1
        batch = EpisodeBatch.load(self._paths[index])
        if len(units) < len(batch):
            batch = batch.take([unit - self._firsts[index] for unit in units])
        return [{name: getattr(batch, name) for name in COLUMNS if self._infos or name not in ENV_INFOS}]
