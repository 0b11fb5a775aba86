"""The child's side of processes for datasets: commands and answers, over standard input and output.

A command or an answer is a line of JSON with `sizes`, and as many bytes behind it as they say. Nothing is pickled.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO

from rollserve_server.errors import DomainError
from rollserve_wire.errors import RollserveError

__all__ = ["DatasetRefusedError", "serve"]

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

_Handler = Callable[[Mapping[str, Any], Sequence[memoryview]], tuple[Mapping[str, Any], Sequence[bytes]]]


class DatasetRefusedError(Exception):
    """A command that cannot be carried out.

    Attributes:
        reason: name of the member of `Reason` that the client gets.
        field: field of the request; empty for the one that the server names.
    """

    def __init__(self, reason: str, text: str, field: str = "") -> None:
        super().__init__(text)
        self.reason = reason
        self.field = field


def serve(carry_out: _Handler) -> None:
    """Carry out commands until standard input ends, which it does with the server; then end the process."""
    commands, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output that libraries print must not reach the answers
    while line := commands.readline():
        command = json.loads(line)
        parts = [memoryview(_read(commands, size)) for size in command.pop("sizes")]
        contents: Sequence[bytes] = ()
        try:
            answer, contents = carry_out(command, parts)
        except Exception as error:
            answer = _refusal(error)
        answers.write(json.dumps({**answer, "sizes": [len(each) for each in contents]}).encode() + b"\n")
        answers.writelines(contents)
        answers.flush()
    os._exit(0)  # what is to be on disk is there; Python's own end would take as long as an addition


def _refusal(error: Exception) -> dict[str, str]:
    text = " ".join(str(error).split()) or type(error).__name__
    match error:
        case DatasetRefusedError():
            named = {"field": error.field} if error.field else {}
            return {"reason": error.reason, "text": text, **named}
        case DomainError():
            return {"reason": error.reason, "text": error.text, "field": error.field}
        case OSError() if error.errno in _FULL:
            return {"reason": "DISK_FULL", "text": f"expected room for the dataset, got {os.strerror(error.errno)}"}
        case OSError() if error.filename is not None:  # a path of the server, which clients are not to see
            return {"reason": "DATASET_UNREADABLE", "text": f"expected a dataset to open, got {error.strerror}"}
        case ImportError():
            return {"reason": "PACKAGE_NOT_FOUND", "text": text}
        case MemoryError():
            return {"reason": "CALL_TOO_LARGE", "text": "expected smaller batches or episodes, got no memory for them"}
        case OSError() | ValueError() | TypeError() | RollserveError():
            return {"reason": "DATASET_UNREADABLE", "text": text}
    return {"reason": "INTERNAL", "text": f"{type(error).__name__}: {text}"}


def _read(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        os._exit(1)  # the server has ended
    return data
