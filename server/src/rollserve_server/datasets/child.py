"""The server's side of processes for datasets; see `commands`."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping, Sequence
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
from rollserve_wire.reasons import Reason

__all__ = ["Child"]

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


class Child:
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
                    start_new_session=True,  # Ctrl-C is for the server, which ends its processes in order
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
