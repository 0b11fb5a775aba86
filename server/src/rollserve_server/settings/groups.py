"""Groups of settings: nested for the code that takes them, flat for flags, environment variables and files."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self, TypeVar, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationInfo, field_validator

from rollserve_wire.json_arguments import kwargs_from_json

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

__all__ = ["Address", "FlatField", "Group", "JsonObject", "Names", "Reloadable", "parse_json"]

_T = TypeVar("_T")
_RELOADABLE = object()
Reloadable = Annotated[_T, _RELOADABLE]
"""Setting whose new value counts without a restart, once the configuration file is read again."""


def parse_json(value: Any) -> Any:
    """Return the value of a JSON text; anything but text is returned as it is.

    Raises:
        ValueError: the text is not JSON.
    """
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"expected JSON: {error}") from None


def _check_json(value: dict[str, Any]) -> dict[str, Any]:
    # YAML has values that JSON lacks, such as dates; the server could not report them to clients.
    try:
        return kwargs_from_json(json.dumps(value))
    except (TypeError, ValueError, RecursionError):
        raise ValueError("expected values that JSON can hold, at most 64 levels deep") from None


def _stripped(value: Any) -> Any:
    return [
        part.strip() if isinstance(part, str) else part for part in value if not isinstance(part, str) or part.strip()
    ]


JsonObject = Annotated[dict[str, Any], AfterValidator(_check_json)]
"""Keyword arguments that JSON can hold."""

Names = BeforeValidator(_stripped)
"""Validator of lists whose elements may have blanks around them; empty ones are dropped."""


def _check_address(value: str) -> str:
    host, colon, port = value.rpartition(":")
    if not (colon and host and port.isdecimal() and int(port) < 1 << 16):
        raise ValueError("expected HOST:PORT, such as 127.0.0.1:50051")
    return value


Address = Annotated[str, AfterValidator(_check_address)]
"""Address to listen at, as HOST:PORT."""


class FlatField(NamedTuple):
    """A setting by its flat name.

    Attributes:
        name: name of the flag (with hyphens), of the environment variable (in capitals) and of the file's key.
        path: names of the groups around the setting, from the outermost.
        info: pydantic's description of it.
    """

    name: str
    path: tuple[str, ...]
    info: FieldInfo

    @property
    def is_reloadable(self) -> bool:
        """Whether a new value counts without a restart."""
        return _RELOADABLE in self.info.metadata

    def value_in(self, settings: Group) -> Any:
        """Return the setting's value."""
        return functools.reduce(getattr, (*self.path, self.name), settings)


class Group(BaseModel):
    """A frozen group of settings, which may hold other groups."""

    # Workers and their children import all groups and read few.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)

    @field_validator("*", mode="before")
    @classmethod
    def _ignore_case(cls, value: Any, info: ValidationInfo) -> Any:
        """Return the choice that a text is but for case; anything else as it is."""
        annotation = cls.model_fields[info.field_name].annotation if info.field_name else None
        if not isinstance(value, str) or get_origin(annotation) is not Literal:
            return value
        return next((choice for choice in get_args(annotation) if choice.lower() == value.strip().lower()), value)

    @classmethod
    def flat_fields(cls) -> Iterator[FlatField]:
        """Yield all settings of the group and of the groups within it. Those without a description are internal."""
        for name, info in cls.model_fields.items():
            kind = info.annotation
            if isinstance(kind, type) and issubclass(kind, Group) and info.description is None:
                yield from (field._replace(path=(name, *field.path)) for field in kind.flat_fields())
            else:
                yield FlatField(name, (), info)

    @classmethod
    def from_flat(cls, values: Mapping[str, Any]) -> Self:
        """Return the group with settings by their flat names; what is not named has its default.

        Raises:
            pydantic.ValidationError: a value is invalid, or missing although it has no default.
        """
        nested: dict[str, Any] = {}
        paths = {field.name: field.path for field in cls.flat_fields()}
        # Each group is there, even if empty, so that a missing value is reported by its own name.
        for name in (*paths, *values.keys() - paths.keys()):
            group = nested
            for part in paths.get(name, ()):
                group = group.setdefault(part, {})
            if name in values:
                group[name] = values[name]
        return cls.model_validate(nested)
