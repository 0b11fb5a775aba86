"""Fields of requests: checks of their values, and their names in errors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from rollserve_server.errors import InvalidValueError, within

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from rollserve.v1 import sampler_service_pb2 as pb

__all__ = ["MOST_FIRST_INDEX", "MOST_STEPS", "MOST_WORKERS", "in_range", "of_field", "optional", "updates_of"]

_T = TypeVar("_T")

MOST_STEPS, MOST_FIRST_INDEX, MOST_WORKERS = 1 << 50, 1 << 62, 10_000


def in_range(field: str, value: int, least: int, most: int) -> int:
    """The value; raises InvalidValueError if it is out of range."""
    if not least <= value <= most:
        raise InvalidValueError.of(field, expected=f"a number from {least} to {most}", got=value)
    return value


@contextlib.contextmanager
def of_field(field: str) -> Iterator[None]:
    """Names the field that errors are about, also those of the client's functions, which know no fields."""
    with within(field):
        try:
            yield
        except ValueError as error:
            raise InvalidValueError(str(error)) from error


def optional(message: Message, name: str) -> Any:
    """The value of a field, or None if it is not set."""
    return getattr(message, name) if message.HasField(name) else None


def updates_of(
    request: pb.UpdateAgentRequest | pb.UpdateEnvRequest, read: Callable[[Any], _T]
) -> tuple[Sequence[_T], bool]:
    """What is made of the updates of a request, and whether there is to be one for each worker.

    Raises:
        InvalidValueError: there are none.
    """
    match request.WhichOneof("update"):
        case "all_workers":
            with of_field("all_workers"):
                return [read(request.all_workers)], False
        case "per_worker":
            updates = []
            for position, update in enumerate(request.per_worker.updates):
                with of_field(f"per_worker.updates[{position}]"):
                    updates.append(read(update))
            return updates, True
        case _:
            raise InvalidValueError.of("update", expected="all_workers or per_worker", got="none")
