"""Fields of requests: checks of their values, and their paths in errors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from google.protobuf.timestamp_pb2 import Timestamp

from rollserve_server.errors import DomainError, InvalidValueError, joined
from rollserve_server.pool import Expectation
from rollserve_wire.errors import FieldError

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from rollserve_wire.v1 import sampler_service_pb2 as pb

__all__ = [
    "MAX_FIRST_INDEX",
    "MAX_STEPS",
    "MAX_WORKERS",
    "Updates",
    "client_id_of",
    "expectation_of",
    "in_field",
    "in_range",
    "optional",
    "seconds_of",
    "set_fields",
    "timestamp_of",
    "updates_from_proto",
]

_T = TypeVar("_T")

MAX_STEPS, MAX_FIRST_INDEX, MAX_WORKERS = 1 << 50, 1 << 62, 10_000
_MAX_CLIENT_ID_BYTES = 64
_MAX_TIMESTAMP_SECONDS = 253_370_764_799  # of year 9998: rounded, the last one of 9999 is no timestamp any more


class Updates(NamedTuple, Generic[_T]):
    """The updates that a request asks for.

    Attributes:
        updates: one for all workers, or one for each: None if nothing is set in it.
        expected: versions that the client expects to be current.
        per_worker: whether there is one for each worker.
        skip_if_identical: whether nothing is updated if the agent is the current one.
    """

    updates: Sequence[_T | None]
    expected: Expectation
    per_worker: bool = False
    skip_if_identical: bool = False


def in_range(field: str, value: int, minimum: int, maximum: int) -> int:
    """Return the value of a field; raise InvalidValueError if it is out of range."""
    if not minimum <= value <= maximum:
        raise InvalidValueError.of(field, expected=f"a number from {minimum} to {maximum}", got=value)
    return value


@contextlib.contextmanager
def in_field(field: str) -> Iterator[None]:
    """Prefix the fields of errors raised in the block with this path.

    A ValueError, as the client's functions raise it, becomes an InvalidValueError of the field, or of the field within
    it that the error names.
    """
    try:
        yield
    except DomainError as error:
        error.field = joined(field, error.field)
        raise
    except FieldError as error:
        raise InvalidValueError(error.text, field=joined(field, error.field)) from error
    except ValueError as error:
        raise InvalidValueError(str(error), field=field) from error


def optional(message: Message, name: str) -> Any:
    """Return the value of a field, or None if it is not set."""
    return getattr(message, name) if message.HasField(name) else None


def timestamp_of(seconds: float) -> Timestamp:
    """Return a time as a message, given in seconds since 1970."""
    timestamp = Timestamp()
    timestamp.FromNanoseconds(round(seconds * 1e9))
    return timestamp


def seconds_of(field: str, timestamp: Timestamp) -> float:
    """Return a time in seconds since 1970; raise InvalidValueError of the field if it is before, or after year 9998."""
    in_range(f"{field}.seconds", timestamp.seconds, 0, _MAX_TIMESTAMP_SECONDS)
    in_range(f"{field}.nanos", timestamp.nanos, 0, 999_999_999)
    return timestamp.ToNanoseconds() / 1e9


def set_fields(message: Message) -> Mapping[str, Any]:
    """Return the fields of a message that are set, by name; those without presence if they are not their default."""
    return {field.name: value for field, value in message.ListFields()}


def expectation_of(given: Mapping[str, Any]) -> Expectation:
    """Return what a client expects of the current versions, given the fields of its message that are set.

    Raises:
        InvalidValueError: the id of the client is too long.
    """
    versions = given.get("expected_policy_version"), given.get("expected_environment_version")
    return Expectation(*versions, client_id_of(given))


def client_id_of(given: Mapping[str, Any]) -> str:
    """Return the id of the client of a message, given its fields; raise InvalidValueError if it is too long."""
    client_id: str = given.get("client_id", "")
    size = len(client_id.encode())
    if size > _MAX_CLIENT_ID_BYTES:
        raise InvalidValueError.of("client_id", expected=f"at most {_MAX_CLIENT_ID_BYTES} bytes", got=size)
    return client_id


def updates_from_proto(
    request: pb.UpdateAgentRequest | pb.UpdateEnvRequest, update_from_proto: Callable[[Any], _T]
) -> Updates[_T]:
    """Return the updates of a request.

    Raises:
        InvalidValueError: the request has no update.
    """
    given = set_fields(request)
    expected, skip_if_identical = expectation_of(given), given.get("skip_if_identical", False)
    if "all_workers" in given:
        with in_field("all_workers"):
            return Updates([update_from_proto(request.all_workers)], expected, False, skip_if_identical)
    if "per_worker" not in given:
        raise InvalidValueError.of("update", expected="all_workers or per_worker", got="none")
    updates: list[_T | None] = []
    for position, update in enumerate(request.per_worker.updates):
        with in_field(f"per_worker.updates[{position}]"):
            updates.append(None if update.WhichOneof("update") is None else update_from_proto(update))
    if updates and not any(update is not None for update in updates):
        expectation = "an element that is set; one with nothing set keeps what its worker has"
        got = f"{len(updates)} with nothing set"
        raise InvalidValueError.of("per_worker.updates", expected=expectation, got=got)
    return Updates(updates, expected, True, skip_if_identical)
