"""The child process of a read: reads files of datasets, and makes messages of their batches."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import resource
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rollserve import EpisodeBatch, data
from rollserve_server.datasets.commands import RefusedError, serve
from rollserve_server.datasets.encoding import StepTooLargeError, encoded
from rollserve_server.datasets.folder import HeldFiles
from rollserve_server.datasets.reader import max_read_bytes
from rollserve_wire.errors import InvalidArgumentError
from rollserve_wire.spaces import space_to_proto
from rollserve_wire.v1 import datasets_pb2

__all__ = ["main"]


@dataclasses.dataclass
class _Drawn:
    """Item of a source: a batch of files, or None in place of live episodes."""

    source: int
    batch: EpisodeBatch | None


class _Read:
    """A mix of sources, and where it stands."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        self._max_bytes: int = request["max_message_bytes"]
        self._readers: list[data.Reader | None] = []
        _check_held(request["files"])
        for number, (files, position) in enumerate(zip(request["files"], request["positions"], strict=True)):
            self._readers.append(None if files is None else _opened(number, files, position, request["batch_size"]))
        sources = [
            self._drawn(number, reader, "" if files is None else files["folder"])
            for number, (reader, files) in enumerate(zip(self._readers, request["files"], strict=True))
        ]
        self._num_drawn: int = request["num_drawn"]
        self._mix = data.mix(
            list(zip(sources, request["weights"], strict=True)),
            seed=request["mix_seed"],
            num_drawn=self._num_drawn,
            until=request["until"],
        )

    def contents(self) -> list[bytes]:
        """Return what the files of each source hold, as messages."""
        return [_content(reader).SerializeToString() for reader in self._readers]

    def next(self) -> tuple[dict[str, Any], list[bytes]]:
        """Return the source that is drawn, the position behind its batch, and the batch's messages."""
        drawn = next(self._mix, None)
        if drawn is None:
            return {"source": None}, []
        self._num_drawn += 1
        messages: list[bytes] = []
        continuing: list[int] = []
        if drawn.batch is not None:
            try:
                for message, continues in encoded(drawn.batch, self._max_bytes):
                    continuing += [len(messages)] if continues else []
                    messages.append(message)
            except StepTooLargeError as error:
                text = f"expected at least {error.num_bytes} for a single step, got {self._max_bytes}"
                raise RefusedError("MESSAGE_TOO_SMALL", text, field="max_message_bytes") from None
        positions = [(0, 0, 0) if reader is None else tuple(reader.position) for reader in self._readers]
        answer = {
            "source": drawn.source,
            "is_live": drawn.batch is None,
            "positions": positions,
            "num_drawn": self._num_drawn,
            "continuing": continuing,
        }
        return answer, messages

    def _drawn(self, number: int, reader: Iterable[EpisodeBatch] | None, folder: str) -> Iterator[_Drawn]:
        if reader is None:
            while True:
                yield _Drawn(number, None)
        yield from (_Drawn(number, batch) for batch in _readable(number, reader, folder))


def main() -> None:
    """Carry out commands until standard input ends."""
    # Batches and buffers that a request makes too large are no harm to others.
    resource.setrlimit(resource.RLIMIT_DATA, (max_read_bytes(), max_read_bytes()))
    read: _Read | None = None

    def carry_out(command: Mapping[str, Any], _: Sequence[memoryview]) -> tuple[Mapping[str, Any], Sequence[bytes]]:
        nonlocal read
        if read is None:
            read = _Read(command)
            return {}, read.contents()
        return read.next()

    serve(carry_out)


def _check_held(sources: Sequence[Mapping[str, Any] | None]) -> None:
    """Check that the folder holds the files of all sources."""
    held: HeldFiles | None = None
    for number, files in enumerate(sources):
        if files is not None:
            held = held or HeldFiles(files["folder"])
            for position, path in enumerate(files["path"]):
                held.check(f"sources[{number}].files.paths[{position}]", path, exists=True)


def _opened(number: int, files: Mapping[str, Any], position: Sequence[int], batch_size: int) -> data.Reader:
    with _naming(number, files["folder"]):
        options = {name: value for name, value in files.items() if name != "folder"}
        return data.read(**options, position=position, batch_size=batch_size)


def _readable(number: int, reader: Iterable[EpisodeBatch], folder: str) -> Iterator[EpisodeBatch]:
    with _naming(number, folder):
        yield from reader


@contextlib.contextmanager
def _naming(number: int, folder: str) -> Iterator[None]:
    """Name the source in errors, and leave out the server's folder."""
    try:
        yield
    except InvalidArgumentError as error:
        field, text = f"sources[{number}].files.{error.field}", error.message.removeprefix(f"{error.field}: ")
        raise RefusedError("INVALID_VALUE", _within(folder, text), field=field) from None
    except (OSError, ValueError, TypeError) as error:
        text = " ".join(_within(folder, str(error)).split())
        raise RefusedError("DATASET_UNREADABLE", text, field=f"sources[{number}].files") from None


def _within(folder: str, text: str) -> str:
    """Return a text whose paths begin in a folder, `.` for the folder itself.

    A path that only goes on with the same names, such as `/a/data` behind another folder, is none of the folder's.
    """
    paths = rf"(?<![\w./-]){re.escape(folder)}(/|(?![\w-]))"
    return re.sub(paths, lambda found: "" if found[1] else ".", text)


def _content(reader: data.Reader | None) -> datasets_pb2.DatasetContent:
    if reader is None:
        return datasets_pb2.DatasetContent()
    spaces = reader.observation_space, reader.action_space
    observations, actions = (None if space is None else space_to_proto(space) for space in spaces)
    return datasets_pb2.DatasetContent(
        missing=dict(reader.missing),
        receipts=reader.receipts,
        observation_space=observations,
        action_space=actions,
    )


if __name__ == "__main__":
    main()
