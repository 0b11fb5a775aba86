"""Transforms of rewards, actions and observations, which the server applies to the rows of an environment.

>>> transforms = [rollserve.transforms.ClipRewards(-1, 1), rollserve.transforms.RescaleActions()]
>>> sampler.update_env(rollserve.EnvSpec("HalfCheetah-v5", transforms=transforms))  # doctest: +SKIP
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import re
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf import json_format

from rollserve_wire.checks import check_flag, check_integer, check_names, check_type
from rollserve_wire.errors import FieldError, InvalidArgumentError, mismatch
from rollserve_wire.representations import briefly
from rollserve_wire.tensors import dtype_from_proto, dtype_to_proto
from rollserve_wire.v1 import environment_pb2

__all__ = [
    "CastObservations",
    "ClipActions",
    "ClipRewards",
    "CropObservations",
    "FlattenObservations",
    "GrayscaleObservations",
    "RescaleActions",
    "RescaleObservations",
    "ResizeObservations",
    "ScaleObservations",
    "ScaleRewards",
    "SignRewards",
    "Transform",
    "transform_from_json",
    "transform_from_proto",
    "transform_to_proto",
]

_MAX_PIXELS = 4096  # of an axis


class _Checked:
    """The base of transforms, which checks their attributes."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]  # each subclass is a dataclass
            _CHECKS[field.name](field.name, getattr(self, field.name))
        if hasattr(self, "leaves"):  # a tuple, so that transforms are hashable
            object.__setattr__(self, "leaves", tuple(self.leaves))
        self._check_together()

    def _check_together(self) -> None:
        """Raise InvalidArgumentError unless the attributes fit each other."""


@briefly
@dataclass(frozen=True)
class SignRewards(_Checked):
    """Rewards reduced to their signs: -1, 0 or 1."""


@briefly
@dataclass(frozen=True)
class ClipRewards(_Checked):
    """Rewards that are moved into bounds.

    Attributes:
        low: lower bound, a finite number; None for none.
        high: upper bound, not below `low`; None for none. One of the bounds is needed.

    Raises:
        TypeError: a bound that is not a number.
        InvalidArgumentError: a bound that is not finite, no bound at all, or an upper one below the lower.
    """

    low: float | None = None
    high: float | None = None

    def _check_together(self) -> None:
        if self.low is None and self.high is None:
            raise InvalidArgumentError.of("low", expected="at least one of both bounds", got="none")
        if self.low is not None and self.high is not None and self.high < self.low:
            raise InvalidArgumentError.of("high", expected=f"at least low, {self.low}", got=self.high)


@briefly
@dataclass(frozen=True)
class ScaleRewards(_Checked):
    """Rewards times a factor, plus an offset, in float64.

    Attributes:
        factor: a finite number other than 0.
        offset: a finite number.

    Raises:
        TypeError: an attribute that is not a number.
        InvalidArgumentError: an attribute that is not finite, or a factor of 0.
    """

    factor: float
    offset: float = 0.0


@briefly
@dataclass(frozen=True)
class RescaleActions(_Checked):
    """Actions of Boxes from `low` to `high`, which are mapped linearly to the bounds of the environment's Boxes.

    Attributes:
        low: lowest action, a finite number.
        high: highest action, above `low`.

    Raises:
        TypeError: an attribute that is not a number.
        InvalidArgumentError: an attribute that is not finite, or bounds in the wrong order.
    """

    low: float = -1.0
    high: float = 1.0

    def _check_together(self) -> None:
        _check_range(self.low, self.high)


@briefly
@dataclass(frozen=True)
class ClipActions(_Checked):
    """Actions that are moved into the bounds of the environment's Boxes. The action space keeps its bounds."""


@briefly
@dataclass(frozen=True)
class CastObservations(_Checked):
    """Observations of another dtype.

    Attributes:
        dtype: a dtype of floats, or one of integers that holds the bounds of the observation's integers.
        leaves: names of the leaves to convert; by default all Boxes.

    Raises:
        TypeError: an attribute of the wrong type.
        InvalidArgumentError: a dtype that messages cannot hold, or the dtype bool.
    """

    dtype: Any
    leaves: Sequence[str] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "dtype", np.dtype(self.dtype).name)


@briefly
@dataclass(frozen=True)
class ScaleObservations(_Checked):
    """Observations times a factor, plus an offset, rounded once. Floats keep their dtype, integers become float32.

    Attributes:
        factor: a finite number other than 0, such as 1 / 255.
        offset: a finite number.
        leaves: names of the leaves to scale; by default all Boxes.

    Raises:
        TypeError: an attribute of the wrong type.
        InvalidArgumentError: a number that is not finite, or a factor of 0.
    """

    factor: float
    offset: float = 0.0
    leaves: Sequence[str] = ()


@briefly
@dataclass(frozen=True)
class RescaleObservations(_Checked):
    """Observations of floats whose bounds are mapped linearly to `low` and `high`.

    Attributes:
        low: value of the lower bounds, a finite number.
        high: value of the upper bounds, above `low`.
        leaves: names of the leaves to rescale; by default all Boxes.

    Raises:
        TypeError: an attribute of the wrong type.
        InvalidArgumentError: a number that is not finite, or bounds in the wrong order.
    """

    low: float
    high: float
    leaves: Sequence[str] = ()

    def _check_together(self) -> None:
        _check_range(self.low, self.high)


@briefly
@dataclass(frozen=True)
class CropObservations(_Checked):
    """A rectangle of each image, which is (H, W) or (H, W, C), or with `channels_first` (C, H, W).

    Attributes:
        top: first line.
        left: first column.
        height: number of lines.
        width: number of columns.
        channels_first: whether the channels, or frames, are the first axis.
        leaves: names of the leaves to crop; by default all Boxes.

    Raises:
        TypeError: an attribute of the wrong type.
        InvalidArgumentError: a number out of range.
    """

    top: int
    left: int
    height: int
    width: int
    channels_first: bool = False
    leaves: Sequence[str] = ()


@briefly
@dataclass(frozen=True)
class ResizeObservations(_Checked):
    """Images of uint8 in another size, by areas. The images are as in `CropObservations`.

    Attributes:
        height: number of lines, at most 4096.
        width: number of columns, at most 4096.
        channels_first: whether the channels, or frames, are the first axis.
        leaves: names of the leaves to resize; by default all Boxes.

    Raises:
        TypeError: an attribute of the wrong type.
        InvalidArgumentError: a number out of range.
    """

    height: int
    width: int
    channels_first: bool = False
    leaves: Sequence[str] = ()


@briefly
@dataclass(frozen=True)
class GrayscaleObservations(_Checked):
    """Images of uint8 in shades of grey. They are (H, W, 3), or (3, H, W) with `channels_first`.

    Attributes:
        keep_channel: whether the axis of the channels stays, with one channel.
        channels_first: whether the channels are the first axis.
        leaves: names of the leaves to convert; by default all Boxes.

    Raises:
        TypeError: an attribute of the wrong type.
    """

    keep_channel: bool = False
    channels_first: bool = False
    leaves: Sequence[str] = ()


@briefly
@dataclass(frozen=True)
class FlattenObservations(_Checked):
    """Observations as vectors, as `gymnasium.spaces.flatten` makes them: all leaves as one, or some as one each.

    Attributes:
        leaves: names of the leaves to make a vector of each, in its place; by default one vector of all leaves.

    Raises:
        TypeError: an attribute of the wrong type.
    """

    leaves: Sequence[str] = ()


Transform = (
    SignRewards
    | ClipRewards
    | ScaleRewards
    | RescaleActions
    | ClipActions
    | CastObservations
    | ScaleObservations
    | RescaleObservations
    | CropObservations
    | ResizeObservations
    | GrayscaleObservations
    | FlattenObservations
)
"""A change of what passes between an agent and the rows of its environment."""

_KINDS: dict[str, type[Any]] = {
    re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower(): kind
    for kind in (
        SignRewards,
        ClipRewards,
        ScaleRewards,
        RescaleActions,
        ClipActions,
        CastObservations,
        ScaleObservations,
        RescaleObservations,
        CropObservations,
        ResizeObservations,
        GrayscaleObservations,
        FlattenObservations,
    )
}
"""Classes by the name of their field in the message, whose other fields have the names of the attributes."""


def transform_to_proto(transform: Transform) -> environment_pb2.Transform:
    """Return a transform as a message."""
    name = next(name for name, kind in _KINDS.items() if isinstance(transform, kind))
    values = {field.name: getattr(transform, field.name) for field in dataclasses.fields(transform)}
    if "dtype" in values:
        values["data_type"] = dtype_to_proto(np.dtype(values.pop("dtype")))
    message = environment_pb2.Transform()
    part = getattr(message, name)
    part.SetInParent()
    part.MergeFrom(type(part)(**values))
    return message


def transform_from_proto(message: environment_pb2.Transform) -> Transform:
    """Return the transform that a message describes.

    Raises:
        ValueError: no transform, or one with a value out of range.
    """
    name = message.WhichOneof("kind")
    if name is None:
        raise FieldError("kind", mismatch(f"one of {', '.join(_KINDS)}", "none"))
    part, kind = getattr(message, name), _KINDS[name]
    values: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        if field.name == "dtype":
            try:
                values["dtype"] = dtype_from_proto(part.data_type)
            except FieldError as error:
                raise FieldError(f"{name}.{error.field}", error.text) from None
        elif field.name == "leaves":
            values["leaves"] = tuple(part.leaves)
        elif not part.DESCRIPTOR.fields_by_name[field.name].has_presence or part.HasField(field.name):
            values[field.name] = getattr(part, field.name)
    try:
        return kind(**values)  # type: ignore[no-any-return]
    except InvalidArgumentError as error:
        field_name = "data_type" if error.field == "dtype" else error.field
        raise FieldError(f"{name}.{field_name}", error.message.removeprefix(f"{error.field}: ")) from None


def transform_from_json(value: object) -> Transform:
    """Return the transform that JSON describes, as protobuf writes it: `{"clip_rewards": {"low": -1, "high": 1}}`.

    Raises:
        ValueError: another value, or one out of range.
    """
    message = environment_pb2.Transform()
    try:
        json_format.ParseDict(value, message)  # type: ignore[arg-type]  # anything else is an error of it
    except (json_format.ParseError, AttributeError, TypeError, ValueError) as error:
        expected = 'a transform such as {"clip_rewards": {"low": -1, "high": 1}}'
        raise ValueError(mismatch(expected, reprlib.repr(value), str(error).partition("\n")[0])) from None
    return transform_from_proto(message)


def _check_range(low: float, high: float) -> None:
    check_type("low", low, numbers.Real, "a number")
    check_type("high", high, numbers.Real, "a number")
    if high <= low:
        raise InvalidArgumentError.of("high", expected=f"more than low, {low}", got=high)


def _check_number(name: str, value: Any) -> None:
    if value is None and name in ("low", "high"):
        return
    check_type(name, value, numbers.Real, "a number")
    if not math.isfinite(value):
        raise InvalidArgumentError.of(name, expected="a finite number", got=value)


def _check_factor(name: str, value: Any) -> None:
    _check_number(name, value)
    if value == 0:
        raise InvalidArgumentError.of(name, expected="a number other than 0", got=value)


def _check_place(name: str, value: Any) -> None:
    check_integer(name, value, 32, signed=False)


def _check_pixels(name: str, value: Any) -> None:
    check_type(name, value, numbers.Integral, "an integer")
    if not 1 <= value <= _MAX_PIXELS:
        raise InvalidArgumentError.of(name, expected=f"a number from 1 to {_MAX_PIXELS}", got=value)


def _check_dtype(name: str, value: Any) -> None:
    try:
        dtype = np.dtype(value)
        dtype_to_proto(dtype)
    except (TypeError, ValueError):  # no dtype, or one that messages cannot hold
        raise InvalidArgumentError.of(name, expected="a dtype of numbers", got=repr(value)) from None
    if dtype.kind == "b":
        raise InvalidArgumentError.of(name, expected="a dtype of numbers", got=dtype)


_CHECKS = {
    "low": _check_number,
    "high": _check_number,
    "factor": _check_factor,
    "offset": _check_number,
    "dtype": _check_dtype,
    "top": _check_place,
    "left": _check_place,
    "height": _check_pixels,
    "width": _check_pixels,
    "channels_first": check_flag,
    "keep_channel": check_flag,
    "leaves": check_names,
}
"""Checks of attributes, which have one meaning in all transforms."""
