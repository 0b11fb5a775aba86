"""D4RL: one HDF5 file with flat columns, a row for each step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rollserve._formats.sources import EXTRA, Source, check_bytes, check_numbers, file_error
from rollserve._formats.step_tables import StepTable, flags_of, segments_of, single_values
from rollserve_wire.errors import mismatch
from rollserve_wire.extras import load

__all__ = ["D4rlSource"]

_CHUNK_STEPS = 1 << 13
_LOG_PROB = "action_log_probs"
"""D4RL's name of the log-probability of actions among the infos."""


class D4rlSource(Source):
    """Episodes of a file of D4RL, whose units are episodes.

    An episode ends where `terminals` or `timeouts` is set. A file without `timeouts` needs `next_observations`: where
    the observation after a step is not the next step's, the episode ended for a reason that the file does not say, and
    neither flag is set.

    Args:
        path: the file.
        infos: whether to read infos.

    Raises:
        ImportError: h5py is not installed.
        ValueError: a file of another kind.
    """

    def __init__(self, path: Path, *, infos: bool) -> None:
        super().__init__([path])
        self._path, self._h5 = path, load("h5py", EXTRA)
        with file_error(path, "a file of D4RL"):
            self._file = self._h5.File(path, "r")
            self._columns = self._find_columns(infos=infos)
            flags = self._flags()
            self.missing = {"policy_versions": "0, unknown"}
            if "next_observations" not in self._columns:
                self.missing["last_observations"] = "NaN or 0, and false in the episode info `last_observation_known`"
            if "timeouts" not in self._columns:
                self.missing["truncated"] = "false: the file does not say why an episode ended that did not terminate"
            self._ends = np.flatnonzero(flags) + 1
        bounds = np.searchsorted(self._ends, np.arange(0, self._ends[-1] + _CHUNK_STEPS, _CHUNK_STEPS))
        bounds = np.unique(np.append(bounds, len(self._ends)))
        self.chunks = [range(low, high) for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)]

    def close(self) -> None:
        self._file.close()

    def _find_columns(self, *, infos: bool) -> dict[str, Any]:
        """Return the file's columns by their paths, all with as many rows."""
        columns = {}
        names = ["observations", "next_observations", "actions", "rewards", "terminals", "timeouts"]
        if infos and "infos" in self._file:
            names += [f"infos/{name}" for name in self._file["infos"]]
        for name in names:
            if name in self._file:
                columns[name] = self._file[name]
        for name in ("observations", "actions", "rewards", "terminals"):
            if name not in columns:
                raise ValueError(f"{name}: {mismatch('a column', 'none')}")
        num_steps = len(columns["rewards"])
        if not num_steps:
            raise ValueError(f"rewards: {mismatch('at least one step', 'none')}")
        for name, column in columns.items():
            if not isinstance(column, self._h5.Dataset) or column.shape[:1] != (num_steps,):
                raise ValueError(
                    f"{name}: {mismatch(f'{num_steps} rows, as rewards', getattr(column, 'shape', 'a group'))}"
                )
            check_numbers(name, np.empty(0, column.dtype))
            if column.chunks is not None:  # HDF5 unpacks a whole chunk for one row
                check_bytes(name, math.prod(column.chunks) * column.dtype.itemsize)
        return columns

    def _flags(self) -> np.ndarray:
        """Return whether a segment ends with each step, (T,) bool."""
        flags = self._flag("terminals")
        if "timeouts" in self._columns:
            flags |= self._flag("timeouts")
        elif "next_observations" in self._columns:
            before, after = self._columns["observations"], self._columns["next_observations"]
            for low in range(0, len(flags) - 1, _CHUNK_STEPS):
                high = min(low + _CHUNK_STEPS, len(flags) - 1)
                flags[low:high] |= _differ(after[low:high], before[low + 1 : high + 1])
        else:
            raise ValueError(
                f"timeouts: {mismatch('a column, or `next_observations`, to see where episodes end', 'neither')}"
            )
        flags[-1] = True
        return flags

    def _flag(self, name: str) -> np.ndarray:
        """Return a column of flags, (T,) bool."""
        column = self._columns[name]
        check_bytes(name, column.nbytes)
        return flags_of(name, column[()], len(column))

    def _read(self, units: Sequence[int]) -> list[dict[str, Any]]:
        with file_error(self._path, "columns of D4RL"):
            starts = np.append(0, self._ends)
            steps = [slice(int(starts[unit]), int(starts[unit + 1])) for unit in units]
            rows = slice(steps[0].start, steps[-1].stop)
            kept = np.concatenate([np.arange(each.start, each.stop) for each in steps]) - rows.start
            check_bytes("columns", sum(map(self._row_bytes, self._columns)) * (rows.stop - rows.start))
            columns = {name: self._rows(name, rows, kept) for name in self._columns}
            lengths = [each.stop - each.start for each in steps]
            begins = np.zeros(len(kept), np.bool_)
            begins[np.cumsum(lengths) - lengths] = True
            infos = {n.removeprefix("infos/"): array for n, array in columns.items() if n.startswith("infos/")}
            agent_infos = {"log_prob": infos.pop(_LOG_PROB)} if _LOG_PROB in infos else {}
            no_flags = np.zeros(len(kept), np.bool_)
            after = columns.get("next_observations")
            table = StepTable(
                {"": columns["observations"]},
                None if after is None else {"": after},
                {"": columns["actions"]},
                single_values("rewards", columns["rewards"]),
                flags_of("terminals", columns["terminals"], len(kept)),
                flags_of("timeouts", columns.get("timeouts", no_flags), len(kept)),
                begins,
                episodes=np.repeat(np.array(units), lengths),
                agent_infos=agent_infos,
                env_infos=infos,
            )
            return [segments_of(table)]

    def _rows(self, name: str, rows: slice, kept: np.ndarray) -> np.ndarray:
        """Return some rows of a column."""
        array: np.ndarray = self._columns[name][rows]
        return array if len(kept) == rows.stop - rows.start else np.take(array, kept, axis=0)

    def _row_bytes(self, name: str) -> int:
        column = self._columns[name]
        return max(int(column.nbytes) // len(column), 1)


def _differ(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return which rows differ, (n,) bool; NaN is equal to NaN."""
    if one.shape != other.shape:
        text = mismatch(f"rows of shape {other.shape[1:]}, as observations", f"shape {one.shape[1:]}")
        raise ValueError(f"next_observations: {text}")
    differ: np.ndarray = ((one != other) & ~((one != one) & (other != other))).reshape(len(one), -1).any(axis=1)
    return differ
