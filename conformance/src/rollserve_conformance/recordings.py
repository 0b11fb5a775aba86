"""Recorded streams: messages as servers send them, in files that every later client has to read to the same values."""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["FOLDER", "Recording", "recording", "sending"]

FOLDER = Path(__file__).with_name("golden")
"""Has a file of each recording; `tests/compatibility/make_recordings.py` writes new ones."""


@dataclass(frozen=True)
class Recording:
    """A whole stream of `ObtainSamples`.

    Attributes:
        messages: the serialized messages.
        needs: truth values that the request's options must have, because the messages need them.
        expected: the description of the batch.
    """

    messages: tuple[bytes, ...]
    needs: tuple[str, ...]
    expected: dict[str, Any]


@functools.cache
def recording(name: str) -> Recording:
    """Return the recording of a name."""
    content = json.loads((FOLDER / f"{name}.json").read_text())
    messages = tuple(map(base64.b64decode, content["messages"]))
    return Recording(messages, tuple(content["needs"]), content["expected"])


def sending(messages: Iterable[bytes]) -> list[dict[str, str]]:
    """Return the steps of a script that send messages; see `RpcRecorder`."""
    return [{"send": base64.b64encode(message).decode()} for message in messages]
