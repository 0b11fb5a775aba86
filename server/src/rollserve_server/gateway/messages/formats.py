"""Formats in which episodes are delivered."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from rollserve_server.errors import InvalidValueError
from rollserve_server.gateway.messages.fields import in_range
from rollserve_server.pool import MessageFormat
from rollserve_server.sampling import COMPRESSIONS, ColumnFormat
from rollserve_wire.v1 import tensor_pb2

if TYPE_CHECKING:
    from rollserve_wire.v1 import agent_versions_pb2, evaluation_pb2
    from rollserve_wire.v1 import sampler_service_pb2 as pb

__all__ = ["evaluation_format_from_proto", "message_limit_from_proto", "sample_format_from_proto"]

_DEFAULT_MESSAGE_BYTES = (4 << 20) - (4 << 10)
"""Just below the size that gRPC's clients accept by default."""
_MIN_MESSAGE_BYTES, _MAX_MESSAGE_BYTES = 4 << 10, 256 << 20


def sample_format_from_proto(options: pb.SamplingOptions) -> MessageFormat:
    """Return the format of the messages of a sampling call.

    Raises:
        InvalidValueError: a size is out of range, or a compression is not set.
    """
    limit, columns = message_limit_from_proto(options), _columns_from_proto(options)
    columns = dataclasses.replace(
        columns,
        all_states=options.return_states,
        last_values=options.return_last_values,
        last_states=options.return_last_states,
        returns_before=options.return_returns_before,
        policies=tuple(options.deliver_policies),
    )
    return MessageFormat(limit, None if options.blackhole else columns)


def evaluation_format_from_proto(delivery: evaluation_pb2.EpisodeDelivery) -> MessageFormat:
    """Return the format of the messages of an evaluation that delivers its episodes; raises as for samples."""
    columns = dataclasses.replace(_columns_from_proto(delivery), returns_before=delivery.return_returns_before)
    return MessageFormat(message_limit_from_proto(delivery), columns)


def message_limit_from_proto(
    message: pb.SamplingOptions
    | pb.ReadDatasetRequest
    | evaluation_pb2.EpisodeDelivery
    | agent_versions_pb2.GetAgentParametersRequest,
) -> int:
    """Return the size in bytes that no message of a stream may exceed.

    Raises:
        InvalidValueError: the size is out of range.
    """
    if not message.HasField("max_message_bytes"):
        return _DEFAULT_MESSAGE_BYTES
    return in_range("max_message_bytes", message.max_message_bytes, _MIN_MESSAGE_BYTES, _MAX_MESSAGE_BYTES)


def _columns_from_proto(options: pb.SamplingOptions | evaluation_pb2.EpisodeDelivery) -> ColumnFormat:
    for position, compression in enumerate(options.accept_compression):
        if compression == tensor_pb2.COMPRESSION_UNSPECIFIED:
            field, expected = f"accept_compression[{position}]", "a compression, or an empty list for none"
            raise InvalidValueError.of(field, expected=expected, got="COMPRESSION_UNSPECIFIED")
    # Compressions that this server does not know may be known to other servers.
    known = (compression for compression in options.accept_compression if compression in COMPRESSIONS)
    return ColumnFormat(next(known, None), options.accept_frame_stacks)
