"""Explanations of invalid settings: name, source, and the values that are valid."""

from __future__ import annotations

from typing import TYPE_CHECKING

from click.core import ParameterSource

from rollserve_server.cli.options import PREFIX, flag_of
from rollserve_server.errors import shorten
from rollserve_server.settings import Settings

if TYPE_CHECKING:
    import click
    from pydantic_core import ErrorDetails

__all__ = ["explain"]

_MAX_SHOWN = 200  # characters of a value

_EXPECTED = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "dict_type": "a JSON object",
    "extra_forbidden": "name and kwargs alone",
    "finite_number": "a finite number",
    "float_parsing": "a number",
    "float_type": "a number",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "literal_error": "{expected}",
    "missing": "a value",
    "model_type": 'a JSON object {{"name": "…", "kwargs": {{…}}}}',
    "path_type": "a path",
    "string_type": "a text",
    "too_long": "at most {max_length} elements",
    "tuple_type": "a JSON list",
}
"""Descriptions of the valid values, by the type of pydantic's error."""


def explain(context: click.Context, error: ErrorDetails) -> str:
    """Return one line on an invalid setting."""
    name, path = _name_and_path(error)
    if error["type"] == "missing" and not path:
        return f"{name}: expected a value, got none: give {flag_of(name)}, {PREFIX}{name.upper()} or the key {name}"
    source = _source(context, name)
    where = f" (from {source})" if source else ""
    got = "none" if error["type"] == "missing" else shorten(repr(error["input"]), _MAX_SHOWN)
    return f"{'.'.join([name, *path])}{where}: {_expected(error)}, got {got}"


def _name_and_path(error: ErrorDetails) -> tuple[str, list[str]]:
    """Return the flat name of the setting, and the path to the value within it, without the groups around it."""
    location = error["loc"]
    for field in Settings.flat_fields():
        full = (*field.path, field.name)
        if location[: len(full)] == full:
            return field.name, [str(part) for part in location[len(full) :]]
    return str(location[-1]), []


def _source(context: click.Context, name: str) -> str | None:
    match context.get_parameter_source(name):
        case ParameterSource.COMMANDLINE:
            return flag_of(name)
        case ParameterSource.ENVIRONMENT:
            return PREFIX + name.upper()
        case ParameterSource.DEFAULT_MAP:
            return "the configuration file"
        case _:
            return None


def _expected(error: ErrorDetails) -> str:
    """Return a description of the valid values: the validator's own text where it has one."""
    expected = _EXPECTED.get(error["type"])
    if expected is None:
        return error["msg"].removeprefix("Value error, ")
    return f"expected {expected.format(**error.get('ctx', {}))}"
