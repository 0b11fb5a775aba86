"""Values of fields: usual, extreme and meaningless ones."""

from __future__ import annotations

import random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

__all__ = ["random_value"]

_INTEGERS = [0, 1, -1, 2, 3, 7, 8, 100, 4096, 65_535, 65_536, 1 << 17, 2**31 - 1, -(2**31), 2**31, 2**32 - 1, 2**50]
_INTEGERS += [2**50 + 1, 2**53 + 1, 2**62, 2**63 - 1, -(2**63), 2**63, 2**64 - 1]
_FLOATS = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    1e-6,
    1e-9,
    1e6,
    5e-324,
    1e-320,
    1e-300,
    1e308,
    float("inf"),
    float("-inf"),
    float("nan"),
]
_TEXTS = [
    *("x-v" + "1" * 5000, "x" * 300 + "/y", '{"kind": "empty"}', '{"kind": "all of float64", "actions": true}'),
    *("", "x", "default", "CartPole-v1", "CartPole-v99", "Pendulum-v1", "MountainCar-v0", "Pong-v5", "Nope-v0"),
    *("os:system", "faults.chaos.environments:Screens", "faults.chaos.environments", ":", "::", "a:", ":a", "a.b:c"),
    *("../../etc/passwd", "/etc/passwd", "\0", "\n", "é" * 300, "\U0001f600", "x" * 20_000, "%s%n{}{0}", "0/weight"),
    *(
        "TimeLimit",
        "FrameStackObservation",
        "RecordVideo",
        "TransformReward",
        "NormalizeReward",
        "set_task",
        "__init__",
    ),
    *("{}", "[]", "null", "0", "{", '""', '{"a": 1}', '{"max_episode_steps": 3}', '{"max_episode_steps": -1}'),
    *('{"stack_size": 4}', '{"stack_size": 1e3}', '{"x": 1e999}', '{"x": NaN}', '"\\ud800"', '{"\\ud800": 0}'),
    *('{"path": "/etc/passwd"}', '{"render_mode": "human"}', '{"id": "x", "id": "y"}', '{"goal": 3}', "1" * 5000),
    *(
        "[" * 5000 + "]" * 5000,
        '{"a":' * 70 + "1" + "}" * 70,
        '{"a":' * 3000 + "1" + "}" * 3000,
        "random",
        "categorical",
    ),
]
_RANGES = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}


def random_value(field: FieldDescriptor, source: random.Random) -> Any:
    """Return a random value for a scalar field, or for an element of a repeated one."""
    kind = field.cpp_type
    if kind in _RANGES:
        smallest, largest = _RANGES[kind]
        return min(max(source.choice(_INTEGERS), smallest), largest)
    if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return source.choice(_FLOATS)
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return source.random() < 0.5
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return source.choice([*(value.number for value in field.enum_type.values), 99, -1, 2**31 - 1])
    if field.type == FieldDescriptor.TYPE_BYTES:
        return source.randbytes(source.choice([0, 1, 3, 4, 8, 64, 4000]))
    if field.name == "sampler" and source.random() < 0.95:  # an unknown sampler ends most checks
        return ""
    return source.choice(_TEXTS)
