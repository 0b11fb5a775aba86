"""Requests that the server rejects, and checks of the status."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import grpc
import pytest
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from support import check_error

from rollserve import Reason
from rollserve_wire.v1 import errors_pb2

CODES = {
    Reason.INVALID_VALUE: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.ENV_REFUSED: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.SAMPLER_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Reason.ENV_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Reason.WRAPPER_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Reason.MODULE_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Reason.MODULE_NOT_ALLOWED: grpc.StatusCode.PERMISSION_DENIED,
    Reason.WRAPPER_NOT_ALLOWED: grpc.StatusCode.PERMISSION_DENIED,
    Reason.PATH_NOT_ALLOWED: grpc.StatusCode.PERMISSION_DENIED,
    Reason.RENDER_MODE_NOT_ALLOWED: grpc.StatusCode.PERMISSION_DENIED,
    Reason.AGENT_MISFIT: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.POLICY_VERSION: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.ROW_STEP_COUNT: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.SAMPLER_RUN: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.UNEXPECTED_VERSION: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.ENVIRONMENT_VERSION: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.MESSAGE_TOO_SMALL: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.FRAGMENTS_TOO_LARGE: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.ENV_FAILED: grpc.StatusCode.INTERNAL,
}
"""Status of each reason that the tests of rejected requests know."""


class Rejection(NamedTuple):
    """A request that the server rejects.

    Attributes:
        request: the request.
        field: path of the field at fault.
        quotes: data that the message has to contain.
        reason: reason of the status.
    """

    request: Message
    field: str
    quotes: tuple[str, ...] = ()
    reason: Reason = Reason.INVALID_VALUE


def rejections(cases: Mapping[str, Rejection]) -> Any:
    """Parametrize a test's argument `rejection` with the cases, by their names."""
    return pytest.mark.parametrize("rejection", cases.values(), ids=list(cases))


def rejection_of(call: Any, request: Any) -> grpc.RpcError:
    """Return the error of a request, from a single response or from a stream."""

    def read() -> None:
        response = call(request)
        if isinstance(response, grpc.RpcContext):  # a stream
            list(response)

    with pytest.raises(grpc.RpcError) as caught:
        read()
    return caught.value


def check_status(error: Any, reason: Reason, *, field: str = "", quotes: str | tuple[str, ...] = ()) -> None:
    """Check a status: code, reason and request in both places, field, and the data that the message quotes."""
    check_error(error, field=field, reason=reason, quotes=quotes)
    assert error.code() is CODES[reason], error.details()
    metadata = dict(error.trailing_metadata())
    assert metadata["rollserve-reason"] == reason
    status = status_pb2.Status.FromString(metadata["grpc-status-details-bin"])
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert (info.reason, info.domain) == (reason, "rollserve")
    assert errors_pb2.ErrorReason.Value(f"ERROR_REASON_{reason}")
    request = error_details_pb2.RequestInfo()
    assert status.details[1].Unpack(request)
    assert request.request_id == metadata["rollserve-request-id"] != ""
    assert len(status.details) == (3 if field else 2)
    for detail in status.details[2:]:
        bad_request = error_details_pb2.BadRequest()
        assert detail.Unpack(bad_request)
        (violation,) = bad_request.field_violations
        assert error.details() == f"{violation.field}: {violation.description}"
    assert status.message == error.details()
    assert "Traceback" not in error.details()
    assert ".py" not in error.details()
