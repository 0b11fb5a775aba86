"""The child process of a recording: writes the messages of workers into a Minari dataset.

So the server's process neither decodes episodes nor waits for disks, and a fault of a library ends the recording alone.
"""

from __future__ import annotations

import copy
import dataclasses
import fcntl
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
from gymnasium.envs.registration import WrapperSpec

from rollserve import EpisodeBatch
from rollserve._calls.joining import join_parts
from rollserve._calls.responses import read_response
from rollserve._formats.minari_writer import MinariWriter
from rollserve.episode_batch import concatenated, with_spaces
from rollserve_server.datasets.commands import RefusedError, serve
from rollserve_server.datasets.folder import HeldFiles
from rollserve_server.errors import DomainError
from rollserve_wire.columns import named_arrays
from rollserve_wire.receipts import Receipt, column_digests
from rollserve_wire.spaces import Space, space_from_proto
from rollserve_wire.v1.space_pb2 import Space as SpaceProto

if TYPE_CHECKING:
    import numpy as np

__all__ = ["main"]

_RECORDING = "rollserve_recording"
"""Name in the metadata of what the episodes are a function of, and how far the recording is."""
_MAX_EPISODE_BYTES = 1 << 30
"""Bytes of an episode: no reader takes more at a time."""
_LOCK_SECONDS = 2.0
"""How long a process waits for another one that writes the dataset."""


class _Recording:
    """A dataset that is recorded, and the episode that has begun to arrive."""

    def __init__(self, request: Mapping[str, Any], spaces: tuple[Space, Space]) -> None:
        self._folder = Path(request["folder"])
        HeldFiles(request["root"]).check("dataset", request["folder"], exists=False)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._lock = _locked(self._folder)
        self._receipt: Mapping[str, Any] | None = request["receipt"]
        self._parts: list[EpisodeBatch] = []
        self._error: Exception | None = None
        origin: dict[str, Any] = dict(request["origin"])
        writer = self._opened(origin) if MinariWriter.exists(self._folder) else None
        if writer is not None:
            self._writer = writer
        else:
            if origin["seed"] is None:
                origin["seed"] = int.from_bytes(os.urandom(8), "little")
            first = {"origin": origin, "next_episode_index": origin["first_episode_index"], "state": "recording"}
            self._writer = MinariWriter.create(
                self._folder,
                request["dataset"],
                spaces,
                env_spec=_env_spec(**request["env"]),
                metadata={**request["metadata"], _RECORDING: first},
            )
        self._state: dict[str, Any] = self._writer.metadata[_RECORDING]

    def _opened(self, origin: dict[str, Any]) -> MinariWriter | None:
        """Return the writer of the dataset that exists; None if a recording has failed before its first episode."""
        try:
            writer = MinariWriter(self._folder)
        except ValueError as error:
            raise RefusedError("DATASET_UNREADABLE", str(error).removeprefix(f"{self._folder}: ")) from None
        known = writer.metadata.get(_RECORDING, {}).get("origin")
        if known is None:
            raise RefusedError("DATASET_DIFFERS", "expected a dataset that a server recorded, got another one")
        if not writer.num_episodes:
            writer.close()
            return None
        for name, value in origin.items():
            if known.get(name) != value and not (name == "seed" and value is None):
                raise RefusedError(
                    "DATASET_DIFFERS", f"expected {name} {known.get(name)!r}, as recorded, got {value!r}"
                )
        return writer

    def add(self, messages: Sequence[memoryview]) -> None:
        """Add the episodes that are whole by now. After an error, nothing is added: episodes would be missing."""
        if self._error is not None:
            raise self._error
        try:
            self._add(messages)
        except Exception as error:
            self._error = error
            raise

    def _add(self, messages: Sequence[memoryview]) -> None:
        whole = list(self._whole(messages))
        if whole:
            batches = list(_merged(whole))
            if self._state["origin"]["rows_of_a_block"] is not None:  # a block's seed makes no episode alone
                batches = [dataclasses.replace(batch, env_seeds=None) for batch in batches]
            receipts = [self._receipt_of(batch) for batch in batches]
            state = {**self._state, "next_episode_index": int(batches[-1].episode_indices[-1]) + 1}
            self._writer.add(batches, receipts, **{_RECORDING: state})
            self._state = state
        pending = sum(_num_bytes(part) for part in self._parts)
        if pending > _MAX_EPISODE_BYTES:
            got = f"{pending} bytes of one that has not ended"
            raise RefusedError("CALL_TOO_LARGE", f"expected episodes of at most {_MAX_EPISODE_BYTES} bytes, got {got}")

    def drop_part(self) -> None:
        """Drop the beginning of an episode whose rest does not arrive: another call samples it again."""
        self._parts.clear()

    def end(self, **state: Any) -> None:
        """Note in the metadata how the recording has ended."""
        self._state = {**self._state, **state}
        self._writer.update_metadata({_RECORDING: self._state})

    def written(self) -> dict[str, Any]:
        """Return what the dataset holds."""
        return {
            "num_episodes": self._writer.num_episodes,
            "num_steps": self._writer.num_steps,
            "num_bytes": self._writer.num_bytes,
            "next_index": self._state["next_episode_index"],
            "seed": self._state["origin"]["seed"],
        }

    def _receipt_of(self, batch: EpisodeBatch) -> str | None:
        if self._receipt is None:
            return None
        seed, digests = self._state["origin"]["seed"], column_digests(batch)
        return Receipt(**self._receipt, seed=seed, num_segments=len(batch), digests=digests).to_json()

    def _whole(self, messages: Sequence[memoryview]) -> Iterator[EpisodeBatch]:
        """Yield batches of whole episodes, and keep the beginning of the last one if it goes on."""
        for message in messages:
            batch = read_response(message)
            if not isinstance(batch, EpisodeBatch):
                raise RefusedError("INTERNAL", f"expected episodes, got {type(batch).__name__}")
            ended = batch.terminated | batch.truncated
            if self._parts:
                self._parts.append(batch.take(slice(0, 1)))
                if not ended[0]:
                    continue
                parts, self._parts = self._parts, []
                yield with_spaces(join_parts(parts, Counter()), self._writer.spaces)
                batch, ended = batch.take(slice(1, None)), ended[1:]
            num_whole = len(batch) if not len(batch) or ended[-1] else len(batch) - 1
            if num_whole < len(batch):
                self._parts.append(batch.take(slice(num_whole, None)))
            if num_whole:
                yield with_spaces(batch.take(slice(0, num_whole)), self._writer.spaces)


def main() -> None:
    """Carry out commands until standard input ends."""
    recording: _Recording | None = None

    def carry_out(command: Mapping[str, Any], parts: Sequence[memoryview]) -> tuple[Mapping[str, Any], Sequence[bytes]]:
        nonlocal recording
        if recording is None:
            observations, actions = (space_from_proto(SpaceProto.FromString(part.tobytes())) for part in parts)
            recording = _Recording(command, (observations, actions))
        elif command:
            recording.end(**command)
        elif parts:
            recording.add(parts)
        else:
            recording.drop_part()
        return recording.written(), ()

    serve(carry_out)


def _locked(folder: Path) -> int:
    """Return the descriptor of a folder, which is locked until the process ends.

    The process of a server that was killed may still end an addition: wait for it.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            if time.monotonic() > deadline:
                text = "expected a dataset that nothing records, got one in use"
                raise RefusedError("DATASET_IN_USE", text) from None
        time.sleep(_LOCK_SECONDS / 100)


def _env_spec(id: str, kwargs: Mapping[str, Any], wrappers: Sequence[Mapping[str, Any]]) -> Any:  # noqa: A002
    """Return gymnasium's specification of the environment; None for one that gymnasium does not make by an id."""
    # Imported here because it takes as long as all else together, and only new datasets need it.
    from rollserve_server.envs import find_env, module_of

    def entry_point(wrapper: str) -> str:
        return wrapper if module_of(wrapper) else f"gymnasium.wrappers:{wrapper}"

    try:
        found = find_env(id)
        if not isinstance(found, str):
            return None
        spec = copy.deepcopy(gymnasium.spec(found))
        added = [WrapperSpec(each["name"], entry_point(each["name"]), each["kwargs"]) for each in wrappers]
    except (DomainError, gymnasium.error.Error, ImportError):
        return None
    spec.kwargs.update(kwargs)
    spec.additional_wrappers = (*spec.additional_wrappers, *added)
    return spec


def _merged(batches: Sequence[EpisodeBatch]) -> Iterator[EpisodeBatch]:
    """Yield the batches, neighbours with the same columns as one: messages can differ in their infos."""
    run: list[EpisodeBatch] = []
    for batch in batches:
        if run and _form(batch) != _form(run[-1]):
            yield concatenated(run)
            run = []
        run.append(batch)
    yield concatenated(run)


def _form(batch: EpisodeBatch) -> set[tuple[str, np.dtype, tuple[int, ...]]]:
    return {(name, array.dtype, array.shape[1:]) for name, array in named_arrays(batch)}


def _num_bytes(batch: EpisodeBatch) -> int:
    return sum(array.nbytes for _, array in named_arrays(batch))


if __name__ == "__main__":
    main()
