"""JSON Schemas of arguments: which ones a client may give, and what is wrong with those it gave."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import referencing
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

__all__ = ["ArgumentSchema", "Violation"]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_REFERENCES = ("$ref", "$dynamicRef")
_MAX_SHOWN = 200
"""Characters of a value in the text of an error."""

_EXPECTED = {
    "const": "{}",
    "enum": "one of {}",
    "exclusiveMaximum": "a number below {}",
    "exclusiveMinimum": "a number above {}",
    "maxItems": "at most {} elements",
    "maxLength": "a text of at most {} characters",
    "maxProperties": "at most {} keys",
    "maximum": "a number of at most {}",
    "minItems": "at least {} elements",
    "minLength": "a text of at least {} characters",
    "minProperties": "at least {} keys",
    "minimum": "a number of at least {}",
    "multipleOf": "a multiple of {}",
    "pattern": "a text that matches {}",
    "required": "an object with {}",
    "type": "a value of type {}",
    "uniqueItems": "elements that differ",
}
"""Texts for the keywords of schemas, with a place for the keyword's value."""


class Violation(NamedTuple):
    """A difference between arguments and their schema.

    Attributes:
        path: path of the argument, or of the part of it, such as `sizes[2]`; empty for the arguments as a whole.
        expected: what the schema expects there.
        got: the value there.
    """

    path: str
    expected: str
    got: str

    def __str__(self) -> str:
        text = f"expected {self.expected}, got {self.got}"
        return f"{self.path}: {text}" if self.path else text


class ArgumentSchema:
    """A JSON Schema (draft 2020-12) of an object with arguments. Arguments that it does not name are violations."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        """Check the schema.

        Raises:
            ValueError: the schema is invalid, is of another draft, or refers to something outside of it.
        """
        if schema.get("$schema", _DIALECT) not in (_DIALECT, f"{_DIALECT}#"):
            raise ValueError(f"expected $schema {_DIALECT!r}, or none")
        try:
            Draft202012Validator.check_schema(schema)
        except SchemaError as error:
            where = _path(error) or "the schema"
            raise ValueError(f"expected JSON Schema of draft 2020-12: {where}: {error.message}") from None
        if schema.get("type", "object") != "object":
            raise ValueError("expected type 'object', because arguments have names")
        _check_references(schema)
        self.names = frozenset(schema.get("properties", {}))
        # An empty registry, because the default one fetches what schemas refer to.
        self._validator = Draft202012Validator(schema, registry=referencing.Registry())

    def violation(self, arguments: Mapping[str, object], *, is_complete: bool = True) -> Violation | None:
        """Return what is wrong with arguments; None if nothing is.

        Args:
            arguments: values by name, as JSON has them.
            is_complete: whether arguments that the schema requires may not be missing.
        """
        for name in arguments:
            if name not in self.names:
                known = ", ".join(map(repr, sorted(self.names))) or "no arguments"
                return Violation("", f"names of {known}", _shown(name))
        try:
            for error in self._validator.iter_errors(arguments):
                if is_complete or error.path:  # an error without a path is about the object as a whole
                    return _violation(error)
        except RecursionError:
            return Violation("", "arguments that the schema can be applied to", "a recursion without an end")
        return None


def _violation(error: ValidationError) -> Violation:
    keyword, value = str(error.validator), error.validator_value
    if keyword == "type" and isinstance(value, list):
        text = " or ".join(value)
    elif keyword == "type":
        text = str(value)
    elif isinstance(value, list):
        text = ", ".join(map(_shown, value))
    else:
        text = _shown(value)
    expected = _EXPECTED.get(keyword, f"a value that satisfies {keyword!r} of the schema").format(text)
    return Violation(_path(error), expected, _shown(error.instance))


def _path(error: ValidationError | SchemaError) -> str:
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path)
    return "".join(parts).removeprefix(".")


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def _check_references(schema: Mapping[str, Any]) -> None:
    """Raise ValueError if a schema refers to something outside of it, or to a place that it lacks."""
    resolver = referencing.Registry().with_resource("", DRAFT202012.create_resource(schema)).resolver()
    for keyword, target in _references(schema):
        if not target.startswith("#"):
            raise ValueError(
                f"expected references within the schema, such as '#/$defs/level', not {keyword} {target!r}"
            )
        try:
            resolver.lookup(target)
        except Unresolvable:
            raise ValueError(f"expected references to places that the schema has, not {keyword} {target!r}") from None


def _references(part: object) -> Iterator[tuple[str, str]]:
    """Yield the keyword and the target of each reference; raise ValueError for an id, which would change targets."""
    if isinstance(part, Mapping):
        for key, value in part.items():
            if key in _REFERENCES and isinstance(value, str):
                yield key, value
            elif key == "$id" and isinstance(value, str):
                raise ValueError("expected no $id, because references stay within the schema")
            else:
                yield from _references(value)
    elif isinstance(part, list):
        for element in part:
            yield from _references(element)
