"""Reading: batches from files, in order or shuffled, for some epochs, from a position on."""

from __future__ import annotations

import math
import os
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from rollserve._formats.sources import file_error
from rollserve.data.opening import Format, open_source
from rollserve.data.shuffling import Shuffle, checked_shuffle, shuffled
from rollserve.data.space_checks import fitted
from rollserve.episode_batch import EpisodeBatch, concatenated
from rollserve_wire.checks import check_count, check_flag, check_integer, check_type, type_error
from rollserve_wire.errors import InvalidArgumentError
from rollserve_wire.representations import briefly
from rollserve_wire.spaces import Space

__all__ = ["Position", "Reader", "read"]

_NO_SHARDS = (0, 1)
_SPACES = {"observation_space": ("observations", "last_observations"), "action_space": ("actions",)}
"""Columns that arguments give a space to."""


@briefly
class Position(NamedTuple):
    """Position of a reader: three integers, which JSON can hold.

    Attributes:
        epoch: number of epochs that have ended.
        chunk: part of the files at which to go on; 0 where the order is shuffled.
        segment: number of segments since the chunk's beginning, or of the epoch where the order is shuffled.
    """

    epoch: int = 0
    chunk: int = 0
    segment: int = 0


def read(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    format: Format | None = None,  # noqa: A002  # what it is called everywhere
    length: int | None = None,
    batch_size: int = 256,
    num_epochs: int | None = 1,
    shuffle_seed: int | None = None,
    shuffle_steps: int | None = None,
    shard: tuple[int, int] = _NO_SHARDS,
    position: Position | Sequence[int] = Position(),  # noqa: B008  # a tuple
    infos: bool = True,
    dones: str | None = None,
    observation_space: Space | None = None,
    action_space: Space | None = None,
) -> Reader:
    """Return an iterator over the batches of files, which are read chunk by chunk.

    Nothing is unpickled: columns of objects are refused by their names. What a format lacks is None, or as `missing` of
    the reader says.

    >>> reader = rollserve.data.read("episodes", length=32, shuffle_seed=1, num_epochs=None)  # doctest: +SKIP
    >>> for batch in reader:  # doctest: +SKIP
    ...     update(batch)
    ...     save_checkpoint(position=reader.position)

    Args:
        path: a file, a folder, or several of them: a folder of a Minari dataset; a file of D4RL; or files of RLlib's
            JSON, Parquet or `EpisodeBatch.save`.
        format: format of the files; by default the one that their first bytes tell.
        length: number of steps of fragments that episodes are cut into; 1 for transitions, whose observations after are
            `last_observations`. None for whole episodes, or for the fragments that the files hold.
        batch_size: number of segments of each batch. An epoch's last one may be smaller.
        num_epochs: number of times that all segments are read; None for ever.
        shuffle_seed: seed of a random order, another one in each epoch; None for the order of the files.
        shuffle_steps: number of steps in the buffer that shuffles segments, by default 131,072; only with a seed.
            Chunks, or Minari's episodes, are read in random order, too.
        shard: (i, n) for the i-th of n parts of the data: i from 0 to n - 1. Parts do not overlap.
        position: position of a reader with the same arguments, to go on behind its last batch. In the order of the
            files, what was read is skipped; a shuffled epoch is read from its beginning, and dropped up to the
            position.
        infos: whether to read the infos of environments.
        dones: `terminated` or `truncated`: what the column `dones` of RLlib's old files stands for. It merges both, so
            such files are refused without it.
        observation_space: space that observations have to fit, and whose dtypes they get.
        action_space: space that actions have to fit, and whose dtypes they get.

    Raises:
        TypeError: an argument of the wrong type.
        InvalidArgumentError: an argument out of range.
        ImportError: the library for the format is not installed; the message names the extra.
        ValueError: files that cannot be read; the message begins with the path.
        OSError: no such file.
    """
    for name, value in (("length", length), ("num_epochs", num_epochs)):
        if value is not None:
            check_count(name, value)
    check_count("batch_size", batch_size)
    shuffle = checked_shuffle("", shuffle_seed, shuffle_steps)
    check_flag("infos", infos)
    for name, space in (("observation_space", observation_space), ("action_space", action_space)):
        if space is not None:
            check_type(name, space, Space, "a space of rollserve.spaces")
    index, count = _numbers("shard", shard, "(i, n)", 2)
    check_count("shard[1]", count)
    check_integer("shard[0]", index, 32, signed=False)
    if index >= count:
        raise InvalidArgumentError.of("shard", expected=f"a part from 0 to {count - 1}", got=index)
    position = Position(*_numbers("position", position, "(epoch, chunk, segment)", 3))
    for name, number in zip(Position._fields, position, strict=True):
        check_integer(f"position.{name}", number, 63, signed=False)
    return Reader(
        path,
        file_format=format,
        length=length,
        batch_size=batch_size,
        num_epochs=num_epochs,
        shuffle=shuffle,
        shard=(index, count),
        position=position,
        infos=infos,
        dones=dones,
        spaces=(observation_space, action_space),
    )


def _numbers(name: str, value: Any, form: str, count: int) -> Sequence[int]:
    """Return a sequence of a number of elements; raise TypeError or InvalidArgumentError for anything else."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise type_error(name, form, value)
    if len(value) != count:
        raise InvalidArgumentError.of(name, expected=form, got=value)
    return value


class Reader(Iterator[EpisodeBatch]):
    """Iterator over the batches of files; `read` makes one. It can be used as a context, which closes the files.

    Attributes:
        position: where the reader stands behind the last batch.
        missing: what the files lack and what stands for it, by the field of `EpisodeBatch`.
        observation_space, action_space: spaces of the batches, given or as the files say; None if neither.
        receipts: receipts in the files, as JSON.

    Raises:
        ValueError: content that cannot be read, that does not fit the spaces, or that changes while it is read.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        file_format: Format | None,
        length: int | None,
        batch_size: int,
        num_epochs: int | None,
        shuffle: Shuffle | None,
        shard: tuple[int, int],
        position: Position,
        infos: bool,
        dones: str | None,
        spaces: tuple[Space | None, Space | None],
    ) -> None:
        self._source = open_source(path, file_format=file_format, infos=infos, dones=dones)
        self._path, self._length, self._batch_size, self._num_epochs = path, length, batch_size, num_epochs
        self._shuffle, self._shard, self._given_spaces = shuffle, shard, spaces
        self.position = position
        self.missing: Mapping[str, str] = self._source.missing
        self.receipts = tuple(self._source.receipts)
        own = self._source.spaces or (None, None)
        self.observation_space, self.action_space = (given or found for given, found in zip(spaces, own, strict=True))
        if position.chunk > len(self._source.chunks) or (shuffle and position.chunk):
            expected = f"a chunk from 0 to {0 if shuffle else len(self._source.chunks)}"
            raise InvalidArgumentError.of("position.chunk", expected=expected, got=position.chunk)
        if num_epochs is not None and position > (num_epochs, 0, 0):
            expected = f"a position up to the end of {num_epochs} epochs"
            raise InvalidArgumentError.of("position", expected=expected, got=tuple(position))
        self._batches = self._all_batches()

    def __next__(self) -> EpisodeBatch:
        with file_error(self._source.path, "columns of batches that fit each other"):
            return next(self._batches)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files; the reader has no further batches."""
        self._batches.close()
        self._source.close()

    def _all_batches(self) -> Generator[EpisodeBatch]:
        while self._num_epochs is None or self.position.epoch < self._num_epochs:
            begun = self.position
            is_empty = True
            for batch in self._epoch():
                is_empty = False
                yield batch
            if is_empty and begun == (begun.epoch, 0, 0):
                return  # an epoch of nothing would go on for ever
            self.position = Position(begun.epoch + 1)

    def _epoch(self) -> Iterator[EpisodeBatch]:
        """Yield the batches of an epoch from the position on, and move the position behind each."""
        epoch, chunk, dropped = self.position
        pending: list[EpisodeBatch] = []
        size = 0
        for number, first, block in self._blocks(epoch, chunk):
            start = min(dropped, len(block)) if dropped else 0
            dropped -= start
            while start < len(block):
                stop = min(start + self._batch_size - size, len(block))
                pending.append(block.take(slice(start, stop)))
                size, start = size + stop - start, stop
                if size == self._batch_size:
                    self.position = Position(epoch, number, first + stop)
                    yield concatenated(pending)
                    pending, size = [], 0
        if dropped:
            expected = f"at most {self.position.segment - dropped}"
            raise InvalidArgumentError.of("position.segment", expected=expected, got=self.position.segment)
        if pending:
            self.position = Position(epoch + 1)
            yield concatenated(pending)

    def _blocks(self, epoch: int, chunk: int) -> Iterator[tuple[int, int, EpisodeBatch]]:
        """Yield batches of any size, each with its chunk and the number of segments before it in the chunk."""
        if self._shuffle is None:
            for number in range(chunk, len(self._source.chunks)):
                first = 0
                for batch in self._batches_of([self._shard_of(self._source.chunks[number])]):
                    cut = batch if self._length is None else batch.cut(self._length)
                    yield number, first, cut
                    first += len(cut)
            return
        seed, num_steps = self._shuffle
        first = 0
        for batch in self._shuffled(num_steps, np.random.default_rng([seed, epoch, self._shard[0]])):
            yield 0, first, batch
            first += len(batch)

    def _shuffled(self, num_steps: int, generator: np.random.Generator) -> Iterator[EpisodeBatch]:
        """Yield batches of this reader's part in random order."""
        chunks, access = self._source.chunks, self._source.random_access
        options: dict[str, Any] = {"length": self._length, "page_size": self._batch_size}
        if access is None:
            order = generator.permutation(len(chunks)).tolist()
            batches = self._batches_of(self._shard_of(chunks[number]) for number in order)
            yield from shuffled(batches, num_steps, generator, **options)
            return
        units = generator.permutation(self._shard_of(range(chunks[-1].stop if chunks else 0)))
        if self._length is None:  # Whole segments are in random order already.
            size = max(map(len, chunks), default=1)
            yield from self._batches_of(group.tolist() for group in np.split(units, range(size, len(units), size)))
            return
        num_groups = max(round(len(units) * access.mean_steps / num_steps), 1)
        is_buffer = len(units) <= num_groups * access.max_units  # whether a group fills the buffer
        if not is_buffer:
            num_groups = math.ceil(len(units) / access.max_units)
        batches = self._batches_of(group.tolist() for group in np.array_split(units, num_groups))
        yield from shuffled(batches, 1 if is_buffer else num_steps, generator, leaving=1.0, **options)

    def _shard_of(self, chunk: range) -> range:
        """Return this reader's part of a chunk."""
        index, count = self._shard
        return range(chunk.start + (index - chunk.start) % count, chunk.stop, count)

    def _batches_of(self, groups: Iterable[Sequence[int]]) -> Iterator[EpisodeBatch]:
        """Yield the batches of each group of units that is not empty."""
        for units in groups:
            if units:
                yield from map(self._batch_of, self._source.read(units))

    def _batch_of(self, fields: dict[str, Any]) -> EpisodeBatch:
        with file_error(self._source.path, "columns of a batch"):
            for name, space in zip(_SPACES, self._given_spaces, strict=True):
                if space is None:
                    continue
                for column in _SPACES[name]:
                    try:
                        fields[column] = fitted(column, fields[column], space)
                    except ValueError as error:
                        raise ValueError(f"{error}: the argument `{name}` asks for that") from None
            return EpisodeBatch(**fields, observation_space=self.observation_space, action_space=self.action_space)
