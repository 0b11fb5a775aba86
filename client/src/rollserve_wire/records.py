"""Records to and from messages, field by field: dataclasses whose attributes are named as the protos' fields by rule.

| field of the message | attribute of the record |
|---|---|
| `lost_step_count` | `num_lost_steps` |
| `queued`, a Duration | `queued_seconds` |
| `environment_version` | `env_version` |
| any other | the same name |
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from google.protobuf.duration_pb2 import Duration

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from google.protobuf.message import Message

__all__ = ["duration_to_proto", "message_from_record", "record_from_message"]

_M = TypeVar("_M", bound="Message")
_T = TypeVar("_T", bound="DataclassInstance")


def record_from_message(kind: type[_T], message: Message, **others: Any) -> _T:
    """Return a record with the values of a message's fields. Maps become dicts, Durations seconds.

    Args:
        kind: dataclass of the record.
        message: the message; fields without an attribute of the record are ignored.
        others: attributes that are not named by the rule, or need another conversion.
    """
    for name, field, read in _attributes(kind, message.DESCRIPTOR):
        if name not in others:
            value = getattr(message, field)
            others[name] = value if read is None else read(value)
    return kind(**others)


def message_from_record(kind: type[_M], record: object, **others: Any) -> _M:
    """Return a message with the values of a record's attributes.

    Args:
        kind: class of the message.
        record: the record; it has an attribute for each field.
        others: fields that are not named by the rule, or need another conversion.
    """
    values = {}
    for field, attribute, _, write in _rules(kind.DESCRIPTOR):
        if field not in others:
            value = getattr(record, field if hasattr(record, field) else attribute)
            values[field] = value if write is None else write(value)
    return kind(**values, **others)


def duration_to_proto(seconds: float) -> Duration:
    """Return a duration in whole nanoseconds."""
    duration = Duration()
    duration.FromNanoseconds(round(seconds * 1e9))
    return duration


class _Rule(NamedTuple):
    """How a field and an attribute become each other; without a function, the value stays as it is."""

    field: str
    attribute: str
    read: Callable[[Any], Any] | None = None
    write: Callable[[Any], Any] | None = None


@functools.cache
def _attributes(
    kind: type[DataclassInstance], message: Descriptor
) -> list[tuple[str, str, Callable[[Any], Any] | None]]:
    """Return the attributes of a record that a message has: the attribute, its field, and how the field is read."""
    names = {field.name for field in dataclasses.fields(kind)}
    found = []
    for field, attribute, read, _ in _rules(message):
        name = field if field in names else attribute
        if name in names:
            found.append((name, field, read))
    return found


@functools.cache
def _rules(message: Descriptor) -> list[_Rule]:
    return [_rule(field) for field in message.fields]


def _rule(field: FieldDescriptor) -> _Rule:
    kind, attribute = field.message_type, field.name.replace("environment_", "env_")
    if kind is not None and kind.full_name == Duration.DESCRIPTOR.full_name:
        return _Rule(field.name, f"{attribute}_seconds", _seconds, duration_to_proto)
    if kind is not None and kind.GetOptions().map_entry:
        return _Rule(field.name, attribute, read=dict)
    if attribute.endswith("_count"):
        attribute = f"num_{attribute.removesuffix('_count')}s"
    return _Rule(field.name, attribute)


def _seconds(duration: Duration) -> float:
    return (duration.seconds * 10**9 + duration.nanos) / 1e9
