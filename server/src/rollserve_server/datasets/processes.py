"""The server's side of the processes for datasets; see `commands`, `reading` and `writing`."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from rollserve_server.children import Lifeline, launching
from rollserve_server.errors import (
    DomainError,
    InvalidValueError,
    NotAllowedError,
    NotFoundError,
    NotReadyError,
    OverLimitError,
    describe,
)
from rollserve_server.futures import in_background
from rollserve_server.machine import memory_bytes
from rollserve_wire.reasons import Reason

__all__ = ["DatasetReader", "DatasetRecorder", "DrawnBatch", "Written", "max_read_bytes"]


_ERRORS: Mapping[Reason, type[DomainError]] = {
    Reason.CALL_TOO_LARGE: OverLimitError,
    Reason.DATASET_DIFFERS: NotReadyError,
    Reason.DATASET_IN_USE: NotReadyError,
    Reason.DATASET_NOT_FOUND: NotFoundError,
    Reason.DATASET_UNREADABLE: NotReadyError,
    Reason.DISK_FULL: OverLimitError,
    Reason.INVALID_VALUE: InvalidValueError,
    Reason.MESSAGE_TOO_SMALL: OverLimitError,
    Reason.PACKAGE_NOT_FOUND: NotFoundError,
    Reason.PATH_NOT_ALLOWED: NotAllowedError,
}
_MAX_LINE_BYTES = 16 << 20
_END_SECONDS = 10.0
"""How long a process may take to end once it has no commands."""

_MIN_READ_BYTES, _MAX_READ_BYTES = 1 << 30, 4 << 30


class _Child:
    """A process that carries out commands of one call."""

    def __init__(self, process: asyncio.subprocess.Process, lifeline: Lifeline) -> None:
        self._process = process
        self._lifeline = lifeline

    @classmethod
    async def start(cls, module: str) -> Self:
        """Start a module of this package."""
        lifeline = Lifeline()
        try:
            with lifeline.end() as end:
                process = await asyncio.create_subprocess_exec(
                    *launching(end, "-m", f"rollserve_server.datasets.{module}"),
                    pass_fds=[end],
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    limit=_MAX_LINE_BYTES,
                    process_group=0,  # Ctrl-C is for the server, which ends its processes in order
                )
        except BaseException:
            lifeline.close()
            raise
        return cls(process, lifeline)

    async def ask(
        self, command: Mapping[str, Any], parts: Sequence[bytes] = (), *, field: str
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Return the answer to a command, and the bytes behind it.

        Args:
            command: the command.
            parts: bytes behind it.
            field: field of the request that errors name, if the answer names none.

        Raises:
            DomainError: the process refuses the command, or has ended.
        """
        reader, writer = self._process.stdout, self._process.stdin
        assert reader is not None  # noqa: S101
        assert writer is not None  # noqa: S101
        try:
            writer.write(json.dumps({**command, "sizes": [len(part) for part in parts]}).encode() + b"\n")
            for part in parts:
                writer.write(part)
                await writer.drain()
        except ConnectionError:
            pass  # the answer says why
        try:
            answer = json.loads(await reader.readline() or b"null")
            contents = [await reader.readexactly(size) for size in answer.pop("sizes", ())]
        except (AttributeError, ConnectionError, asyncio.IncompleteReadError):
            reason = Reason.DATASET_UNREADABLE
            raise NotReadyError("the process for the dataset has ended", reason=reason, field=field) from None
        except (ValueError, TypeError) as error:
            self.kill()
            text = f"the process for the dataset does not answer as expected: {describe(error)}"
            raise NotReadyError(text, reason=Reason.DATASET_UNREADABLE, field=field) from None
        if "reason" in answer:
            reason = Reason(answer["reason"])
            raise _ERRORS.get(reason, DomainError)(answer["text"], reason=reason, field=answer.get("field", field))
        return answer, contents

    async def close(self) -> None:
        """End the process, which first ends what it does."""
        assert self._process.stdin is not None  # noqa: S101
        self._process.stdin.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), _END_SECONDS)
        self.kill()
        await self._process.wait()

    def kill(self) -> None:
        """End the process at once, whatever it does."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._lifeline.close()


def max_read_bytes() -> int:
    """Return the memory of a read's process beside code: a sixteenth of the machine's, from 1 to 4 GiB."""
    return min(max(memory_bytes() // 16, _MIN_READ_BYTES), _MAX_READ_BYTES)


@dataclass(frozen=True)
class DrawnBatch:
    """A batch that was drawn.

    Attributes:
        source: position of its source.
        is_live: whether the source is live episodes, which the caller samples.
        positions: (epoch, chunk, segment) of each source behind the batch.
        num_drawn: number of batches that were drawn.
        continuing: positions of messages whose first segment continues the last one of the message before.
        messages: serialized responses.
    """

    source: int
    is_live: bool
    positions: Sequence[Sequence[int]]
    num_drawn: int
    continuing: Sequence[int]
    messages: Sequence[bytes]


class DatasetReader:
    """A process that reads the files of one request, one batch ahead.

    Attributes:
        contents: what the files of each source hold, as messages.
    """

    def __init__(self, child: _Child, contents: Sequence[bytes]) -> None:
        self._child = child
        self.contents = contents
        self._next = in_background(child.ask({}, field="sources"))

    @classmethod
    async def start(cls, request: Mapping[str, Any]) -> Self:
        """Open the files.

        Raises:
            DomainError: the files cannot be read, or do not fit the request.
        """
        child = await _Child.start("reading")
        try:
            _, contents = await child.ask(request, field="sources")
        except BaseException:
            child.kill()
            raise
        return cls(child, contents)

    async def wait(self, seconds: float) -> bool:
        """Wait for the next batch for so many seconds; return whether it is there."""
        await asyncio.wait({self._next}, timeout=seconds)
        return self._next.done()

    async def next(self) -> DrawnBatch | None:
        """Return the next batch, or None after the last one.

        Raises:
            DomainError: the files cannot be read.
        """
        answer, messages = await self._next
        if answer["source"] is None:
            return None
        self._next = in_background(self._child.ask({}, field="sources"))
        return DrawnBatch(**answer, messages=messages)

    def close(self) -> None:
        """End the process."""
        self._next.cancel()
        self._child.kill()


@dataclass(frozen=True)
class Written:
    """Content of a dataset on disk.

    Attributes:
        num_episodes, num_steps: what it has.
        num_bytes: size of its data.
        next_index: index of the episode that comes next.
        seed: root seed of its episodes.
    """

    num_episodes: int
    num_steps: int
    num_bytes: int
    next_index: int
    seed: int


class DatasetRecorder:
    """A process that writes one dataset, which nobody else records meanwhile.

    Attributes:
        written: what the dataset holds.
    """

    def __init__(self, child: _Child) -> None:
        self._child = child
        self.written = Written(0, 0, 0, 0, 0)

    @classmethod
    async def start(cls, request: Mapping[str, Any], spaces: Sequence[bytes]) -> Self:
        """Open a dataset, or create it.

        Args:
            request: its folder, id and metadata, and what its episodes are a function of.
            spaces: messages of its spaces of observations and actions.

        Raises:
            NotReadyError: something else is recorded there, by another recording or now.
            NotFoundError: a library is not installed.
            OverLimitError: the disk is full.
        """
        recorder = cls(await _Child.start("writing"))
        try:
            await recorder._command(request, spaces)
        except BaseException:
            recorder._child.kill()
            raise
        return recorder

    async def add(self, messages: Sequence[bytes], *, convert: bool = False) -> None:
        """Write messages to the log, and their whole episodes into the dataset at intervals, or at once.

        The beginning of an episode is dropped if a message comes in place of its rest.

        Raises:
            OverLimitError: the disk is full, or an episode is too large.
            NotReadyError: the dataset cannot be written.
        """
        await self._command({"convert": convert}, messages)

    async def end(self, state: str, **details: object) -> None:
        """Note how the recording has ended; raises as `add`."""
        await self._command({"state": state, **details}, ())

    async def close(self) -> None:
        """End the process, which has written what it was given."""
        await self._child.close()

    async def _command(self, command: Mapping[str, Any], parts: Sequence[bytes]) -> None:
        answer, _ = await self._child.ask(command, parts, field="dataset")
        self.written = Written(**answer)
