"""Minari datasets that grow by the messages of a recording, and what a kill leaves of them."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import struct
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from rollserve._calls.joining import join_parts
from rollserve._calls.responses import read_response
from rollserve._formats.minari_writer import MinariWriter
from rollserve._formats.staged_file import replace_file
from rollserve.episode_batch import EpisodeBatch, concatenated, with_spaces
from rollserve_wire.columns import named_arrays
from rollserve_wire.errors import mismatch
from rollserve_wire.receipts import Receipt, column_digests

if TYPE_CHECKING:
    from rollserve_wire.spaces import Space

__all__ = ["RecordedDataset", "locked", "repair"]

_STATE = "rollserve_recording"
"""Name in the metadata of what the episodes are a function of, and how far the recording is."""
_LOG_FILE = "recording.log"
_RECORD = struct.Struct("<II")
"""Header of each message in the log: its length and its CRC-32."""
_LOCK_SECONDS = 2.0
"""How long a process waits for another one that writes the dataset."""


class RecordedDataset:
    """Minari dataset that grows by the messages of a recording.

    `append` writes messages to a log in the dataset's folder, and `convert` turns their whole episodes into Minari's.
    A process that is killed leaves the dataset as it was converted last, and the rest in the log, which the next
    opening converts. A dataset has one writer at a time; see `locked`.

    Attributes:
        state: what the metadata say about the recording; empty for a dataset that no server has recorded.
        num_recovered: number of episodes that the opening has found in the log.
    """

    def __init__(self, folder: Path) -> None:
        """Open a dataset.

        Raises:
            ImportError: Minari or h5py is not installed.
            OSError: a file cannot be opened or written.
            ValueError: the folder holds no Minari dataset in HDF5.
        """
        self._writer = MinariWriter(folder)
        self.state: Mapping[str, Any] = self._writer.metadata.get(_STATE, {})
        self._episodes: list[EpisodeBatch] = []
        self._parts: list[tuple[EpisodeBatch, bytes | memoryview]] = []
        before = self.num_episodes
        if self.state:
            self._log = _Log(folder / _LOG_FILE)
            for message in self._log.messages():
                self._take(message)
            self._parts.clear()
            self.convert()
            self._log.restart(())
        self.num_recovered = self.num_episodes - before

    @classmethod
    def create(
        cls,
        folder: Path,
        dataset_id: str,
        spaces: tuple[Space, Space],
        *,
        env_spec: Any,
        metadata: Mapping[str, Any],
        origin: Mapping[str, Any],
        receipt: Mapping[str, Any] | None,
    ) -> Self:
        """Create a dataset without episodes.

        Args:
            folder: folder of the dataset.
            dataset_id: Minari's id.
            spaces: spaces of observations and actions.
            env_spec: specification of gymnasium's environment; None if there is none.
            metadata: further metadata.
            origin: what the episodes are a function of.
            receipt: what receipts have in common, by the names of `Receipt`; None for no receipts.

        Raises:
            ImportError: Minari or h5py is not installed.
            OSError: the dataset cannot be written.
        """
        start = {"origin": origin, "next_episode_index": origin["first_episode_index"]}
        metadata = {**metadata, _STATE: {**start, "state": "recording", "receipt": receipt}}
        (folder / _LOG_FILE).unlink(missing_ok=True)
        MinariWriter.create(folder, dataset_id, spaces, env_spec=env_spec, metadata=metadata).close()
        return cls(folder)

    def close(self) -> None:
        """Close the files."""
        self._writer.close()
        if self.state:
            self._log.close()

    @property
    def num_episodes(self) -> int:
        """Number of episodes in the dataset."""
        return self._writer.num_episodes

    @property
    def num_steps(self) -> int:
        """Number of their steps."""
        return self._writer.num_steps

    @property
    def num_bytes(self) -> int:
        """Size of the file with the episodes."""
        return self._writer.num_bytes

    @property
    def num_pending_bytes(self) -> int:
        """Size of the beginning of an episode that has not ended."""
        return sum(array.nbytes for part, _ in self._parts for _, array in named_arrays(part))

    def note(self, **changes: Any) -> None:
        """Change the state in the metadata; raise OSError if it cannot be written."""
        state = {**self.state, **changes}
        self._writer.update_metadata({_STATE: state})
        self.state = state

    def append(self, messages: Sequence[bytes | memoryview]) -> None:
        """Write messages to the log.

        Raises:
            OSError: one cannot be written. Those before it are in the log, and no others may follow.
        """
        for message in messages:
            self._log.append(message)
            self._take(message)

    def convert(self) -> None:
        """Add the episodes that are whole by now to the dataset, and take them out of the log.

        Raises:
            OSError: they cannot be written. Dataset and log are as they were.
        """
        if not self._episodes:
            return
        batches = list(_merged(self._episodes))
        if self.state["origin"]["rows_of_a_block"] is not None:  # a block's seed makes no episode alone
            batches = [dataclasses.replace(batch, env_seeds=None) for batch in batches]
        state = {**self.state, "next_episode_index": int(batches[-1].episode_indices[-1]) + 1}
        self._writer.add(batches, [self._receipt_of(batch) for batch in batches], **{_STATE: state})
        self.state, self._episodes = state, []
        self._log.restart([message for _, message in self._parts])

    def end(self, **changes: Any) -> None:
        """Convert the rest, remove the log, and change the state in the metadata; raises as `convert`."""
        self.convert()
        self._log.end()
        self.note(**changes)

    def _take(self, message: bytes | memoryview) -> None:
        """Keep the whole episodes of a message, and the beginning of the last one if it goes on."""
        batch = read_response(message)
        if not isinstance(batch, EpisodeBatch):
            raise ValueError(mismatch("a message of episodes", type(batch).__name__))
        is_converted = batch.episode_indices < self.state["next_episode_index"]
        if is_converted.any():  # a kill between the additions and the log's restart leaves them in both
            batch = batch.take(np.flatnonzero(~is_converted))
        if self._parts and len(batch):
            if batch.first_steps[0]:
                self._parts.append((batch.take(slice(0, 1)), message))
                if not (batch.terminated[0] or batch.truncated[0]):
                    return
                self._add(join_parts([part for part, _ in self._parts], Counter()))
                batch = batch.take(slice(1, None))
            self._parts.clear()  # an episode whose rest has not arrived is sampled again by another call
        is_open = len(batch) > 0 and not (batch.terminated[-1] or batch.truncated[-1])
        if is_open:
            self._parts.append((batch.take(slice(len(batch) - 1, None)), message))
        self._add(batch.take(slice(0, len(batch) - is_open)))

    def _add(self, batch: EpisodeBatch) -> None:
        if len(batch):
            self._episodes.append(with_spaces(batch, self._writer.spaces))

    def _receipt_of(self, batch: EpisodeBatch) -> str | None:
        if self.state["receipt"] is None:
            return None
        seed, digests = self.state["origin"]["seed"], column_digests(batch)
        return Receipt(**self.state["receipt"], seed=seed, num_segments=len(batch), digests=digests).to_json()


class _Log:
    """Log of messages: each behind its length and its CRC-32, which reveal a torn one at the end."""

    def __init__(self, path: Path) -> None:
        """Open or create the log."""
        self._path = path
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115  # it stays open until the process ends

    def messages(self) -> Iterator[bytes]:
        """Yield the messages, up to the first one that is not whole."""
        with open(self._path, "rb") as file:
            while len(head := file.read(_RECORD.size)) == _RECORD.size:
                size, checksum = _RECORD.unpack(head)
                message = file.read(size)
                if not message or len(message) < size or zlib.crc32(message) != checksum:
                    return
                yield message

    def append(self, message: bytes | memoryview) -> None:
        """Append a message; raise OSError if it cannot be written."""
        for part in (_head_of(message), message):
            view = memoryview(part)
            while view:
                view = view[os.write(self._file.fileno(), view) :]

    def restart(self, messages: Sequence[bytes | memoryview]) -> None:
        """Replace the log, at once, by one of some messages; raise OSError if it cannot be written."""
        replace_file(self._path, b"".join(part for each in messages for part in (_head_of(each), each)))
        self._file.close()
        self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115

    def close(self) -> None:
        """Close the log."""
        self._file.close()

    def end(self) -> None:
        """Close and remove the log."""
        self.close()
        self._path.unlink()


def repair(folder: Path) -> tuple[int, int]:
    """Finish what a process that was killed while it wrote a Minari dataset has left.

    Returns:
        Number of episodes in the dataset, and how many of them were found in the log of a recording.

    Raises:
        ImportError: Minari or h5py is not installed.
        OSError: a file cannot be opened or written, or another process writes the dataset.
        ValueError: the folder holds no Minari dataset in HDF5.
    """
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, locked(folder))
        dataset = stack.enter_context(contextlib.closing(RecordedDataset(folder)))
        if dataset.state:
            state = dataset.state["state"]
            dataset.end(state="repaired" if state == "recording" else state)
        return dataset.num_episodes, dataset.num_recovered


def locked(folder: Path) -> int:
    """Return the descriptor of a folder, which is locked until the descriptor is closed or the process ends.

    Waits up to 2 seconds for a process that writes the dataset: the process of a killed server may still do so.

    Raises:
        OSError: no such folder.
        TimeoutError: another process writes the dataset.
    """
    import fcntl  # not on Windows, where no server runs

    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(descriptor)
                text = mismatch("a dataset that nothing records", "one in use")
                raise TimeoutError(f"{folder}: {text}") from None
        time.sleep(_LOCK_SECONDS / 100)


def _head_of(message: bytes | memoryview) -> bytes:
    return _RECORD.pack(len(message), zlib.crc32(message))


def _merged(batches: Sequence[EpisodeBatch]) -> Iterator[EpisodeBatch]:
    """Yield the batches, neighbours with the same columns as one: messages can differ in their infos."""
    for _, run in itertools.groupby(batches, _form):
        yield concatenated(list(run))


def _form(batch: EpisodeBatch) -> set[tuple[str, np.dtype, tuple[int, ...]]]:
    return {(name, array.dtype, array.shape[1:]) for name, array in named_arrays(batch)}
