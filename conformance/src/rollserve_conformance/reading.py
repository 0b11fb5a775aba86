"""A plain reader of streams: what the messages say, by the rules of `docs/client-streams.md` and nothing cleverer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

import lz4.block
import numpy as np
import zstandard

from rollserve_wire.columns import COLUMNS, ENV_INFOS, joined_rows
from rollserve_wire.v1 import sampler_service_pb2 as pb
from rollserve_wire.v1 import tensor_pb2

if TYPE_CHECKING:
    from rollserve_wire.v1 import episode_batch_pb2

__all__ = [
    "GROUPS",
    "HEADERS",
    "Arrays",
    "concatenated_batches",
    "is_mask",
    "joined_segments",
    "mask_name",
    "read_array",
    "read_batch",
    "read_stream",
    "unjoined",
    "with_gaps",
]

Arrays = dict[str, Any]
"""A joined stream: arrays by the names of `EpisodeBatch`'s fields, columns as arrays by name, and `account`."""

HEADERS = {
    name: spec
    for name, spec in COLUMNS.items()
    if spec.kind == "header" and spec.dtypes != "f" and name not in ("worker_indices", "row_indices")
}
"""Headers of integers and truth values that all batches have."""
GROUPS = {name: spec for name, spec in COLUMNS.items() if spec.kind != "header"}
"""Columns of tensors."""
_MAX_EXACT = 1 << 53


def read_stream(responses: Iterable[bytes]) -> Arrays:
    """Return what the messages of one whole stream hold, joined.

    Args:
        responses: serialized messages of a stream that ends with its account.

    Returns:
        the arrays; columns of infos may have a mask, of the name of the column behind `_`.

    Raises:
        ValueError: the stream has no batch or no account.
    """
    batches: list[Arrays] = []
    account = None
    for message in unjoined(responses):
        if message.WhichOneof("content") == "batch":
            batches.append(read_batch(message.batch))
        elif message.WhichOneof("content") == "account":
            account = message.account
    if not batches or account is None:
        raise ValueError("expected batches and an account")
    _drop_misfits(batches, account.dropped_infos)
    joined, _ = joined_segments(concatenated_batches(batches))
    return {**joined, "account": account}


def unjoined(responses: Iterable[bytes]) -> list[pb.ObtainSamplesResponse]:
    """Return the messages of a stream, those that came in one apart."""
    messages = []
    for response in responses:
        message = pb.ObtainSamplesResponse.FromString(response)
        messages += unjoined(message.joined.responses) if message.HasField("joined") else [message]
    return messages


def read_batch(message: episode_batch_pb2.EpisodeBatch) -> Arrays:
    """Return the arrays of a message."""
    arrays: Arrays = {name: np.array(list(getattr(message, spec.fields[0]))) for name, spec in HEADERS.items()}
    arrays["returns_before"] = np.array(message.returns_before)
    for name, spec in GROUPS.items():
        field: Any = spec.fields[0]
        if spec.kind == "numbers":
            arrays[name] = {"": read_array(getattr(message, field))} if message.HasField(field) else {}
        else:
            arrays[name] = {each.name: read_array(each.tensor) for each in getattr(message, field)}
    for stack in message.frame_stacks:
        observations, last = _unstacked(read_array(stack.frames), stack.frame_count, arrays["lengths"])
        arrays["observations"][stack.name], arrays["last_observations"][stack.name] = observations, last
    return arrays


def read_array(tensor: tensor_pb2.Tensor) -> np.ndarray:
    """Return the array of a tensor."""
    name = tensor_pb2.DataType.Name(tensor.data_type).removeprefix("DATA_TYPE_").lower()
    dtype = np.dtype(name).newbyteorder("<")
    num_bytes = int(np.prod(tensor.shape, dtype=np.int64)) * dtype.itemsize
    data = tensor.data
    if tensor.compression == tensor_pb2.COMPRESSION_LZ4:
        data = lz4.block.decompress(data, num_bytes)
    elif tensor.compression == tensor_pb2.COMPRESSION_ZSTD:
        data = zstandard.decompress(data, num_bytes)
    return np.frombuffer(data, dtype).reshape(tuple(tensor.shape))


def _unstacked(frames: np.ndarray, count: int, lengths: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    observations, last, start = [], [], 0
    for length in lengths:
        of_segment = frames[start : start + length + count]
        observations += [of_segment[step : step + count] for step in range(length)]
        last.append(of_segment[length:])
        start += length + count
    return np.stack(observations), np.stack(last)


def _drop_misfits(batches: Sequence[Arrays], dropped: MutableMapping[str, int]) -> None:
    """Remove the infos that are not of the first shape of their name, or that no dtype holds, and count the values."""
    headers = {name: np.concatenate([batch[name] for batch in batches]) for name in HEADERS}
    first = np.split(_first_parts(headers), np.cumsum([len(batch["lengths"]) for batch in batches])[:-1])
    for group in ENV_INFOS:
        for name in {name for batch in batches for name in batch[group] if not is_mask(name, batch[group])}:
            present = [batch[group][name] for batch in batches if name in batch[group]]
            shape = None if _common_dtype(present) is None else present[0].shape[1:]
            for batch, is_first in zip(batches, first, strict=True):
                if name in batch[group] and batch[group][name].shape[1:] != shape:
                    column = batch[group].pop(name)
                    mask = batch[group].pop(mask_name(name), np.ones(len(column), bool))
                    dropped[name] += int((mask & is_first if group == "episode_infos" else mask).sum())


def _common_dtype(arrays: Sequence[np.ndarray]) -> np.dtype | None:
    """Return the dtype that holds each value of all arrays; None for none."""
    dtype = np.result_type(*arrays)
    integers = [int(value) for array in arrays if array.dtype.kind in "iu" for value in array.flat]
    if dtype.kind == "f" and all(array.dtype.kind != "f" for array in arrays):
        return np.dtype(np.uint64) if all(value >= 0 for value in integers) else None
    if dtype.kind == "f" and any(abs(value) > _MAX_EXACT for value in integers):
        return None
    return dtype


def concatenated_batches(batches: Sequence[Arrays]) -> Arrays:
    """Return the batches behind one another, with gaps where one lacks a column of infos."""
    result: Arrays = {name: np.concatenate([batch[name] for batch in batches]) for name in HEADERS}
    result["returns_before"] = _returns_before(batches)
    num_steps = [int(batch["lengths"].sum()) for batch in batches]
    num_segments = [len(batch["lengths"]) for batch in batches]
    for name, spec in GROUPS.items():
        columns = [batch[name] for batch in batches]
        if spec.original_of and any(columns):
            columns = [batch[name] or batch[spec.original_of] for batch in batches]
        is_info = spec.kind == "infos"
        result[name] = with_gaps(columns, num_steps if spec.by_step else num_segments) if is_info else _columns(columns)
    return result


def _columns(columns: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([each[name] for each in columns]) for name in columns[0]}


def _returns_before(batches: Sequence[Arrays]) -> np.ndarray:
    """Return the sums before all segments, NaN where they are unknown; no elements if no message has them."""
    sums = [batch["returns_before"] for batch in batches]
    if not any(map(len, sums)):
        return np.zeros(0)
    unknown = [np.where(batch["first_steps"] == 0, 0.0, np.nan) for batch in batches]
    return np.concatenate([known if len(known) else other for known, other in zip(sums, unknown, strict=True)])


def with_gaps(columns: Sequence[dict[str, np.ndarray]], nums: Sequence[int]) -> dict[str, np.ndarray]:
    """Return columns of infos of several parts behind one another, with masks where a part lacks one.

    Args:
        columns: the columns of each part, with their masks.
        nums: number of rows of each part.

    Raises:
        ValueError: no dtype holds all numbers of a column.
    """
    result = {}
    names = dict.fromkeys(name for each in columns for name in each if not is_mask(name, each))
    for name in names:
        present = [each[name] for each in columns if name in each]
        dtype, shape = _common_dtype(present), present[0].shape[1:]
        if dtype is None:
            raise ValueError(f"{name!r}: expected numbers that one dtype can hold, got others")
        values, masks = [], []
        for each, num in zip(columns, nums, strict=True):
            has_values = name in each
            values.append(each[name].astype(dtype) if has_values else np.zeros((num, *shape), dtype))
            full = np.full(num, has_values)
            masks.append(each.get(mask_name(name), full) if has_values else full)
        result[name], mask = np.concatenate(values), np.concatenate(masks)
        if not mask.all():
            result[mask_name(name)] = mask
    return result


def mask_name(name: str) -> str:
    """Return the name of a column's mask: `_gap` for `gap`, and `_nested/gap` for `nested/gap`."""
    return f"_{name}"


def is_mask(name: str, columns: Mapping[str, np.ndarray]) -> bool:
    """Return whether a column is the mask of another one."""
    return name.startswith("_") and name[1:] in columns


def joined_segments(batch: Arrays, apart: np.ndarray | None = None) -> tuple[Arrays, np.ndarray]:
    """Make one segment of those that continue each other; return the batch, and which segments are first parts, (N,).

    Args:
        batch: the batch.
        apart: whether each segment but the first is not to be joined to the one before it; None for no such segment.
    """
    first = _first_parts(batch)
    if apart is not None:
        first[1:] |= apart
    begins, ends = np.flatnonzero(first), np.flatnonzero(np.append(first[1:], True))
    result = dict(batch)
    for name, spec in HEADERS.items():
        result[name] = joined_rows(spec, batch[name], begins, ends)
    for name, spec in GROUPS.items():
        result[name] = {leaf: joined_rows(spec, each, begins, ends) for leaf, each in batch[name].items()}
    if len(batch["returns_before"]):
        result["returns_before"] = batch["returns_before"][first]
    return result, first


def _first_parts(headers: Arrays) -> np.ndarray:
    """Return whether each segment does not continue the one before it, (N,)."""
    indices, lengths = headers["episode_indices"], headers["lengths"]
    over = headers["terminated"] | headers["truncated"]
    first = np.ones(len(lengths), bool)
    for place in range(1, len(lengths)):
        continues = headers["first_steps"][place] == headers["first_steps"][place - 1] + lengths[place - 1]
        same = indices[place] == indices[place - 1]
        first[place] = not (same and continues and not over[place - 1])
    return first
