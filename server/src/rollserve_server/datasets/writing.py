"""The child process of a recording: writes the messages of workers into a Minari dataset.

So the server's process neither decodes episodes nor waits for disks, and a fault of a library ends the recording alone.
"""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
from gymnasium.envs.registration import WrapperSpec

from rollserve._calls.recorded_dataset import CLIENT, RecordedDataset, locked
from rollserve._formats.minari_writer import MinariWriter
from rollserve_server.datasets.commands import DatasetRefusedError, serve
from rollserve_server.datasets.folder import HeldFiles
from rollserve_server.errors import DomainError
from rollserve_wire.spaces import space_from_proto
from rollserve_wire.v1.space_pb2 import Space as SpaceProto

if TYPE_CHECKING:
    from rollserve_wire.spaces import Space

__all__ = ["main"]

_CONVERT_BYTES, _CONVERT_SECONDS = 4 << 20, 1.0
"""Bytes of messages that a conversion is worth, and how long whole episodes wait for it."""
_MAX_EPISODE_BYTES = 1 << 30
"""Bytes of an episode, or in a session of all that its rows run: no reader takes more at a time."""


class _Recording:
    """A dataset that is recorded."""

    def __init__(self, request: Mapping[str, Any], spaces: tuple[Space, Space]) -> None:
        folder = Path(request["folder"])
        HeldFiles(request["root"]).check("dataset", request["folder"], exists=False)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            self._lock = locked(folder)
        except TimeoutError:
            text = "expected a dataset that nothing records, got one in use"
            raise DatasetRefusedError("DATASET_IN_USE", text) from None
        origin: dict[str, Any] = dict(request["origin"])
        is_session = request.get("is_session", False)
        if is_session:
            origin["agent"] = CLIENT
        receipt: Mapping[str, Any] | None = request["receipt"]
        dataset = _opened(folder, origin) if MinariWriter.exists(folder) else None
        if origin["seed"] is None and (dataset is None or is_session):
            origin["seed"] = int.from_bytes(os.urandom(8), "little")
        if dataset is None:
            dataset = RecordedDataset.create(
                folder,
                request["dataset"],
                spaces,
                env_spec=_env_spec(**request["env"]),
                metadata=request["metadata"],
                origin=origin,
                receipt=receipt,
            )
        elif is_session:
            dataset.begin_session(state="recording", receipt=receipt, origin=origin)
        else:
            dataset.note(state="recording", receipt=receipt)
        self._dataset = dataset
        self._error: Exception | None = None
        self._num_bytes, self._converted = 0, time.monotonic()

    def add(self, messages: Sequence[memoryview], *, convert: bool) -> None:
        """Add messages; convert their whole episodes at once, or when they are worth it.

        After an error, nothing is added: episodes would be missing.
        """
        if self._error is not None:
            raise self._error
        try:
            self._dataset.append(messages)
            self._num_bytes += sum(map(len, messages))
            pending = self._dataset.num_pending_bytes
            is_due = self._num_bytes >= _CONVERT_BYTES or time.monotonic() - self._converted >= _CONVERT_SECONDS
            if convert or is_due or pending > _MAX_EPISODE_BYTES:
                self._dataset.convert()
                self._num_bytes, self._converted = 0, time.monotonic()
            if pending > _MAX_EPISODE_BYTES:
                expected = f"at most {_MAX_EPISODE_BYTES} bytes of episodes that have not ended"
                raise DatasetRefusedError("CALL_TOO_LARGE", f"expected {expected}, got {pending}")
        except Exception as error:
            self._error = error
            raise

    def end(self, **state: Any) -> None:
        """Note in the metadata how the recording has ended. After an error, the next opening converts the rest."""
        if self._error is None:
            self._dataset.end(**state)
        else:
            self._dataset.note(**state)

    def written(self) -> dict[str, Any]:
        """Return what the dataset holds."""
        return {
            "num_episodes": self._dataset.num_episodes,
            "num_steps": self._dataset.num_steps,
            "num_bytes": self._dataset.num_bytes,
            "next_index": self._dataset.state["next_episode_index"],
            "seed": self._dataset.state["origin"]["seed"],
        }


def _opened(folder: Path, origin: Mapping[str, Any]) -> RecordedDataset | None:
    """Return the dataset that exists; None if a recording has failed before its first episode.

    Sessions with any seed may add to a dataset of sessions.
    """
    try:
        dataset = RecordedDataset(folder)
    except ValueError as error:
        raise DatasetRefusedError("DATASET_UNREADABLE", str(error).removeprefix(f"{folder}: ")) from None
    known = dataset.state.get("origin")
    if known is None:
        raise DatasetRefusedError("DATASET_DIFFERS", "expected a dataset that a server recorded, got another one")
    if not dataset.num_episodes:
        dataset.close()
        return None
    for name, value in origin.items():
        if known.get(name) != value and not (name == "seed" and (value is None or origin.get("agent") == CLIENT)):
            raise DatasetRefusedError(
                "DATASET_DIFFERS", f"expected {name} {known.get(name)!r}, as recorded, got {value!r}"
            )
    return dataset


def main() -> None:
    """Carry out commands until standard input ends."""
    recording: _Recording | None = None

    def carry_out(command: Mapping[str, Any], parts: Sequence[memoryview]) -> tuple[Mapping[str, Any], Sequence[bytes]]:
        nonlocal recording
        if recording is None:
            observations, actions = (space_from_proto(SpaceProto.FromString(part.tobytes())) for part in parts)
            recording = _Recording(command, (observations, actions))
        elif "convert" in command:
            recording.add(parts, convert=command["convert"])
        else:
            recording.end(**command)
        return recording.written(), ()

    serve(carry_out)


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


if __name__ == "__main__":
    main()
