"""What several tests need."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import rollserve
from rollserve.columns import leaves_of

TESTS = Path(__file__).parent


def server_environment() -> dict[str, str]:
    """What a server needs to find the environments of the tests."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))}


@contextlib.contextmanager
def silent_address() -> Iterator[str]:
    """Where connections are taken, and nothing is ever said."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def equal(first: rollserve.EpisodeBatch, second: rollserve.EpisodeBatch) -> bool:
    """Whether all that two batches tell of their episodes is the same, to the last bit."""
    names = [field.name for field in dataclasses.fields(rollserve.EpisodeBatch) if field.name != "account"]
    return all(_equal_columns(getattr(first, name), getattr(second, name)) for name in names)


def _equal_columns(first: object, second: object) -> bool:
    if first is None or second is None:
        return first is second
    ones, others = leaves_of(first), leaves_of(second)
    return ones.keys() == others.keys() and all(
        (one.dtype, one.shape, one.tobytes()) == (others[name].dtype, others[name].shape, others[name].tobytes())
        for name, one in ones.items()
    )
