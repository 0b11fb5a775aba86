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
from typing import TYPE_CHECKING, Any, NamedTuple, Self

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

__all__ = ["CLIENT", "RecordedDataset", "locked", "repair"]

CLIENT = "client"
"""What stands for the agent in the origin of a dataset that clients of sessions have acted in."""

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
    opening converts. A dataset has one writer at a time; see `locked`. Episodes come in the order of their indices; of
    sessions, in parts of all rows by turns, and end in any order.

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
        self._num_messages = 0
        # By index, the parts of each episode that has not ended, and the message that each came in; and of a session,
        # which episodes of the log the dataset has.
        self._open: dict[int, list[tuple[EpisodeBatch, _Logged]]] = {}
        self._converted: set[int] = set(self.state.get("converted", ()))
        before = self.num_episodes
        if self.state:
            self._log = _Log(folder / _LOG_FILE)
            for message in self._log.messages():
                self._take(message)
            self._open.clear()
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
        """Size of the beginnings of episodes that have not ended."""
        parts = (part for parts in self._open.values() for part, _ in parts)
        return sum(array.nbytes for part in parts for _, array in named_arrays(part))

    @property
    def _is_of_sessions(self) -> bool:
        return bool(self.state["origin"].get("agent") == CLIENT)

    def note(self, **changes: Any) -> None:
        """Change the state in the metadata; raise OSError if it cannot be written."""
        state = {**self.state, **changes}
        self._writer.update_metadata({_STATE: state})
        self.state = state

    def begin_session(self, **changes: Any) -> None:
        """Take the episodes of another session from now on, whose indices begin again, and change the state."""
        self._converted = set()
        self.note(**changes, converted=[])

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
        converted = self._converted.union(*(batch.episode_indices.tolist() for batch in batches))
        if self._is_of_sessions:
            state = {**self.state, "converted": sorted(converted)}
        else:
            state = {**self.state, "next_episode_index": int(batches[-1].episode_indices[-1]) + 1}
        self._writer.add(batches, [self._receipt_of(batch) for batch in batches], **{_STATE: state})
        self.state, self._episodes, self._converted = state, [], converted
        found = {logged.number: logged for parts in self._open.values() for _, logged in parts}
        kept = [found[number] for number in sorted(found)]
        if 2 * sum(len(logged.message) for logged in kept) < self._log.num_bytes:  # else it would not get much shorter
            self._log.restart([logged.message for logged in kept])
            self._converted &= set().union(*(logged.episode_indices for logged in kept))

    def end(self, **changes: Any) -> None:
        """Convert the rest, remove the log, and change the state in the metadata; raises as `convert`."""
        self.convert()
        self._log.end()
        self.note(**changes)

    def _take(self, message: bytes | memoryview) -> None:
        """Keep the whole episodes of a message, and the parts of others."""
        batch = read_response(message)
        if not isinstance(batch, EpisodeBatch):
            raise ValueError(mismatch("a message of episodes", type(batch).__name__))
        indices, self._num_messages = batch.episode_indices, self._num_messages + 1
        # A kill between the additions and the log's restart leaves episodes in both.
        if self._is_of_sessions:
            is_converted = np.isin(indices, list(self._converted))
        else:
            is_converted = indices < self.state["next_episode_index"]
        if is_converted.any():
            batch = batch.take(np.flatnonzero(~is_converted))
        is_whole = (batch.terminated | batch.truncated) & (batch.first_steps == 0)
        if is_whole.all():
            self._add(batch)
            return
        logged = _Logged(self._num_messages, message, frozenset(indices.tolist()))
        for position in np.flatnonzero(~is_whole).tolist():
            self._take_part(batch.take(slice(position, position + 1)), logged)
        self._add(batch.take(np.flatnonzero(is_whole)))

    def _take_part(self, part: EpisodeBatch, logged: _Logged) -> None:
        """Keep a part of an episode, which may be the last one."""
        index = int(part.episode_indices[0])
        if not part.first_steps[0]:  # also of one whose rest has not arrived, and that another call samples again
            self._open[index] = []
        parts = self._open[index]
        parts.append((part, logged))
        if part.terminated[0] or part.truncated[0]:
            del self._open[index]
            versions = parts[0][0].policy_versions  # which a client that acts may change within the episode
            whole = [dataclasses.replace(each, policy_versions=versions) for each, _ in parts]
            self._add(join_parts(whole, Counter()))

    def _add(self, batch: EpisodeBatch) -> None:
        if len(batch):
            self._episodes.append(with_spaces(batch, self._writer.spaces))

    def _receipt_of(self, batch: EpisodeBatch) -> str | None:
        if self.state["receipt"] is None:
            return None
        seed, digests = self.state["origin"]["seed"], column_digests(batch)
        return Receipt(**self.state["receipt"], seed=seed, num_segments=len(batch), digests=digests).to_json()


class _Logged(NamedTuple):
    """A message in the log: its number, its bytes, and the episodes that it has parts of."""

    number: int
    message: bytes | memoryview
    episode_indices: frozenset[int]


class _Log:
    """Log of messages: each behind its length and its CRC-32, which reveal a torn one at the end.

    Attributes:
        num_bytes: number of bytes of the messages.
    """

    def __init__(self, path: Path) -> None:
        """Open or create the log."""
        self._path = path
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115  # it stays open until the process ends
        self.num_bytes = 0

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
        self.num_bytes += len(message)

    def restart(self, messages: Sequence[bytes | memoryview]) -> None:
        """Replace the log, at once, by one of some messages; raise OSError if it cannot be written."""
        replace_file(self._path, b"".join(part for each in messages for part in (_head_of(each), each)))
        self._file.close()
        self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115
        self.num_bytes = sum(map(len, messages))

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
