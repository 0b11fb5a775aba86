"""Fields that several requests have: what clients expect, who they are, and updates of workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from rollserve_server.errors import InvalidValueError
from rollserve_server.fields import in_field, set_fields
from rollserve_server.pool import Expectation

if TYPE_CHECKING:
    from rollserve_wire.v1 import sampler_service_pb2 as pb

__all__ = ["Updates", "client_id_of", "expectation_of", "updates_from_proto"]

_T = TypeVar("_T")

_MAX_CLIENT_ID_BYTES = 64


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
