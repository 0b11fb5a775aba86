"""RLlib's JSON: text files with a sample batch in each line, whose columns may be packed."""

from __future__ import annotations

import itertools
import json
import mmap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve._formats.packed_arrays import pack_array, unpack_array
from rollserve._formats.rllib_columns import AGENT_NAMES, KNOWN, exact_array, is_ignored, missing_of, table_of
from rollserve._formats.sources import EXTRA, Source, check_bytes, file_error
from rollserve._formats.step_tables import segments_of
from rollserve.bridges.trees import nested, step_positions
from rollserve.learning.transitions import transitions
from rollserve_wire.checks import check_names
from rollserve_wire.columns import columns_of, leaves_of, mask_name
from rollserve_wire.errors import mismatch
from rollserve_wire.extras import load

if TYPE_CHECKING:
    import os

__all__ = ["RllibJsonSource", "write_rllib_json"]

_MAX_LINE_BYTES = 1 << 28
_CHUNK_BYTES, _MAX_CHUNK_LINES = 1 << 22, 256


class RllibJsonSource(Source):
    """Segments of files of RLlib's `JsonWriter`, whose units are lines.

    Args:
        paths: the files.
        infos: whether to read infos.
        dones: what the column `dones` of old files stands for.

    Raises:
        ValueError: a file whose first line is no sample batch.
    """

    def __init__(self, paths: Sequence[Path], *, infos: bool, dones: str | None) -> None:
        super().__init__(paths)
        self._infos, self._dones = infos, dones
        self._lines = [(path, *span) for path in paths for span in _lines(path)]
        if not self._lines:
            raise ValueError(f"{paths[0]}: {mismatch('lines of JSON', 'an empty file')}")
        self.chunks = list(_chunks(self._lines))
        self.missing = missing_of(self._columns(0), dones)

    def _read(self, units: Sequence[int]) -> list[dict[str, Any]]:
        path, start, _ = self._lines[units[0]]
        lines = []
        num_bytes = 0
        for unit in units:
            columns = self._columns(unit)
            num_bytes += _num_bytes(columns)
            with file_error(path, f"a sample batch in the line at byte {self._lines[unit][1]}"):
                check_bytes("columns", num_bytes)
            if not self._infos:
                columns.pop("infos", None)
            lines.append(columns)
        with file_error(path, f"sample batches in the lines from byte {start} on"):
            groups = map(_joined, _alike(lines))
            return [segments_of(table_of(columns, self._dones, begins)) for columns, begins in groups]

    def _columns(self, unit: int) -> dict[str, Any]:
        """Return the columns of a line by RLlib's names."""
        path, start, end = self._lines[unit]
        with file_error(path, f"a sample batch in the line at byte {start}"):
            if end - start > _MAX_LINE_BYTES:
                raise ValueError(mismatch(f"at most {_MAX_LINE_BYTES} bytes", end - start))
            with open(path, "rb") as file:
                file.seek(start)
                record = _parsed(file.read(end - start))
            if not isinstance(record, dict):
                raise ValueError(mismatch("an object", type(record).__name__))
            columns = _one_policy(record).items()
            return {name: _unpacked(name, value) for name, value in columns if not is_ignored(name)}


def _chunks(lines: Sequence[tuple[Path, int, int]]) -> Iterator[range]:
    """Yield ranges of consecutive lines of one file, which are read at once."""
    first = 0
    for number, (path, _, end) in enumerate(lines):
        following = lines[number + 1] if number + 1 < len(lines) else None
        size = end - lines[first][1]
        if following is None or following[0] != path or size >= _CHUNK_BYTES or number + 1 - first >= _MAX_CHUNK_LINES:
            yield range(first, number + 1)
            first = number + 1


def _parsed(line: bytes) -> Any:
    try:
        return load("orjson", EXTRA).loads(line)
    except ValueError:
        return json.loads(line)  # Python's own takes what RLlib writes beyond the standard, such as NaN


def _alike(lines: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yield lines that follow each other in groups, whose columns have the same names, dtypes and shapes of rows."""
    for _, group in itertools.groupby(lines, lambda columns: [*_forms(columns, columns.get("rewards"))]):
        yield list(group)


def _forms(column: Any, rewards: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path of each leaf of a column, and what has to be equal in lines whose columns are concatenated.

    A leaf with another number of rows than the rewards is like no other, so that its line is refused for itself.
    """
    if isinstance(column, dict):
        for name in sorted(column):
            yield from _forms(column[name], rewards, f"{path}/{name}")
    elif not isinstance(column, list | np.ndarray) or np.ndim(rewards) == 0 or len(column) != len(rewards):
        yield path, object()
    else:
        yield path, (column.dtype, column.shape[1:]) if isinstance(column, np.ndarray) else None


def _joined(lines: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], np.ndarray | None]:
    """Return the columns of alike lines one behind the other, and where lines begin, (T,) bool; None for one line."""
    if len(lines) == 1:
        return lines[0], None
    lengths = [len(line["rewards"]) for line in lines]
    begins = np.zeros(sum(lengths) + 1, np.bool_)
    begins[np.cumsum([0, *lengths])] = True
    return _concatenated(lines), begins[:-1]


def _concatenated(columns: Sequence[Any]) -> Any:
    match columns[0]:
        case dict():
            return {name: _concatenated([column[name] for column in columns]) for name in columns[0]}
        case np.ndarray():
            return np.concatenate(columns)
    return [row for column in columns for row in column]


def write_rllib_json(batch: Any, path: str | os.PathLike[str], *, compress: Iterable[str], append: bool) -> None:
    """Write a batch in RLlib's JSON, a line for each segment; see `EpisodeBatch.to_rllib_json`."""
    compress = compress if isinstance(compress, str) else frozenset(compress)
    check_names("compress", compress)
    if not len(batch) and not append:
        raise ValueError(f"batch: {mismatch('at least one segment', 'none, which no reader takes')}")
    found = transitions(batch, 1, None)
    segments, steps = step_positions(batch)
    columns: dict[str, Any] = {
        "obs": batch.observations,
        "new_obs": found.next_observations,
        "actions": batch.actions,
        "rewards": batch.rewards,
        "terminateds": found.terminated,
        "truncateds": found.truncated,
        "eps_id": batch.episode_indices[segments],
        "unroll_id": segments,
        "t": steps,
        "policy_versions": batch.policy_versions[segments],
    }
    if batch.env_seeds is not None:
        columns["env_seeds"] = batch.env_seeds[segments]
    names = {own: name for name, own in AGENT_NAMES.items()}
    for name, array in batch.agent_infos.items():
        if mask_name(name) in batch.agent_infos:
            raise ValueError(f"agent_infos/{name}: {mismatch('an info without gaps', 'one with gaps')}")
        column = names.get(name, name)
        if column in columns or column in KNOWN or column == "type":
            raise ValueError(f"agent_infos/{name}: {mismatch('a name that is no column of RLlib', column)}")
        columns[column] = array
    unknown = sorted(compress - columns.keys())
    if unknown:
        raise ValueError(f"compress: {mismatch(f'names among {sorted(columns)}', unknown)}")
    ends = np.cumsum(batch.lengths)
    with open(path, "a" if append else "w", encoding="utf-8") as file:
        for start, end in zip((ends - batch.lengths).tolist(), ends.tolist(), strict=True):
            record = {"type": "SampleBatch"}
            for name, column in columns.items():
                rows = {leaf: array[start:end] for leaf, array in leaves_of(column).items()}
                record[name] = _to_json(rows, packed=name in compress)
            json.dump(record, file)
            file.write("\n")


def _to_json(rows: Mapping[str, np.ndarray], *, packed: bool) -> Any:
    columns = columns_of({leaf: pack_array(array) if packed else array.tolist() for leaf, array in rows.items()})  # type: ignore[misc]
    return nested(columns) if isinstance(columns, Mapping) else columns


def _lines(path: Path) -> list[tuple[int, int]]:
    """Return where the lines of a file that are not empty begin and end."""
    with open(path, "rb") as file:
        if not path.stat().st_size:
            return []
        spans, start = [], 0
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            while start < len(content):
                found = content.find(b"\n", start)
                end = len(content) if found < 0 else found
                if content[start : min(end, start + 64)].strip():
                    spans.append((start, end))
                start = end + 1
        return spans


def _one_policy(record: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of the only policy of a line."""
    kind = record.pop("type", None)
    if kind == "SampleBatch":
        return record
    if kind != "MultiAgentBatch":
        raise ValueError(f"type: {mismatch('SampleBatch or MultiAgentBatch', kind)}")
    policies = record.get("policy_batches")
    if not isinstance(policies, dict) or len(policies) != 1:
        names = sorted(policies) if isinstance(policies, dict) else policies
        raise ValueError(f"policy_batches: {mismatch('one policy', names)}")
    (columns,) = policies.values()
    if not isinstance(columns, dict):
        raise ValueError(f"policy_batches: {mismatch('an object', type(columns).__name__)}")
    return columns


def _unpacked(name: str, value: Any) -> Any:
    """Return a column with arrays for its leaves, except dicts and rows of several shapes, which stay lists."""
    if isinstance(value, str):
        return unpack_array(name, value)
    if isinstance(value, dict):
        return {key: _unpacked(f"{name}/{key}", child) for key, child in value.items()}
    if isinstance(value, list) and value and not isinstance(value[0], dict):
        try:
            array = np.asarray(value)
        except ValueError:  # rows of several shapes
            return value
        return exact_array(name, value, array)
    return value


def _num_bytes(value: Any) -> int:
    """Return the size of the arrays of a column."""
    if isinstance(value, dict):
        return sum(map(_num_bytes, value.values()))
    return value.nbytes if isinstance(value, np.ndarray) else 0
