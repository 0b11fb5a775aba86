"""Fields of requests: checks of their values, and their paths in errors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf.timestamp_pb2 import Timestamp

from rollserve_server.errors import InvalidValueError, within
from rollserve_server.pool import Expectation
from rollserve_wire.errors import FieldError
from rollserve_wire.v1 import sampler_service_pb2 as pb

if TYPE_CHECKING:
    from google.protobuf.message import Message

__all__ = [
    "MAX_FIRST_INDEX",
    "MAX_STEPS",
    "MAX_WORKERS",
    "client_id_from_proto",
    "expectation_from_proto",
    "in_field",
    "in_range",
    "optional",
    "seconds_of",
    "timestamp_of",
    "updates_from_proto",
]

_T = TypeVar("_T")

MAX_STEPS, MAX_FIRST_INDEX, MAX_WORKERS = 1 << 50, 1 << 62, 10_000
_MAX_CLIENT_ID_BYTES = 64
_MAX_TIMESTAMP_SECONDS = 253_370_764_799  # of year 9998: rounded, the last one of 9999 is no timestamp any more


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
    with within(field):
        try:
            yield
        except FieldError as error:
            raise InvalidValueError(error.text, field=error.field) from error
        except ValueError as error:
            raise InvalidValueError(str(error)) from error


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


def expectation_from_proto(
    message: pb.SamplingOptions
    | pb.EvaluationOptions
    | pb.UpdateAgentRequest
    | pb.UpdateEnvRequest
    | pb.CallEnvironmentsRequest
    | pb.RenderEpisodeRequest,
) -> Expectation:
    """Return what a client expects of the current versions.

    Raises:
        InvalidValueError: the id of the client is too long.
    """
    client_id = client_id_from_proto(message)
    return Expectation(
        None
        if isinstance(message, pb.UpdateEnvRequest | pb.CallEnvironmentsRequest)
        else optional(message, "expected_policy_version"),
        optional(message, "expected_environment_version"),
        client_id,
    )


def client_id_from_proto(message: Any) -> str:
    """Return the id of the client of a request; raise InvalidValueError if it is too long."""
    client_id: str = message.client_id
    size = len(client_id.encode())
    if size > _MAX_CLIENT_ID_BYTES:
        raise InvalidValueError.of("client_id", expected=f"at most {_MAX_CLIENT_ID_BYTES} bytes", got=size)
    return client_id


def updates_from_proto(
    request: pb.UpdateAgentRequest | pb.UpdateEnvRequest, update_from_proto: Callable[[Any], _T]
) -> tuple[Sequence[_T | None], bool]:
    """Return the updates of a request, and whether there is one for each worker instead of one for all.

    One for each worker is None if nothing is set in it.

    Raises:
        InvalidValueError: the request has no update.
    """
    match request.WhichOneof("update"):
        case "all_workers":
            with in_field("all_workers"):
                return [update_from_proto(request.all_workers)], False
        case "per_worker":
            updates: list[_T | None] = []
            for position, update in enumerate(request.per_worker.updates):
                with in_field(f"per_worker.updates[{position}]"):
                    updates.append(None if update.WhichOneof("update") is None else update_from_proto(update))
            if updates and not any(update is not None for update in updates):
                expected = "an element that is set; one with nothing set keeps what its worker has"
                raise InvalidValueError.of(
                    "per_worker.updates", expected=expected, got=f"{len(updates)} with nothing set"
                )
            return updates, True
        case _:
            raise InvalidValueError.of("update", expected="all_workers or per_worker", got="none")
