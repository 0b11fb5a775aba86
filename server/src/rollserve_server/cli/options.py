"""Options of the command line, one for each setting."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import TYPE_CHECKING, get_args, get_origin

import click

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from pydantic.fields import FieldInfo

    from rollserve_server.settings import FlatField

__all__ = ["LISTS", "PREFIX", "check_variables", "flag_of", "option"]

PREFIX = "ROLLSERVE_"
"""Beginning of the names of environment variables that hold settings."""
LISTS = ("allow_module", "allow_method", "allow_path", "onnx_providers", "callbacks")
"""Settings whose option can be given more than once."""

_LIKENESS = 0.75
"""From which on a name is a misspelt one, of 1 for the same."""
_SERVICE = re.compile(r"_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_\w+)?)$")
"""End of variables that Kubernetes sets for a service."""

_METAVARS = {
    "data_dir": "FOLDER",
    "env": "ID",
    "health_listen": "HOST:PORT",
    "jwt_audience": "TEXT",
    "jwt_issuer": "TEXT",
    "jwt_scope_claim": "NAME",
    "listen": "HOST:PORT",
    "metrics_listen": "HOST:PORT",
    "otlp_endpoint": "URL",
    "ray_address": "ADDRESS",
    "ray_namespace": "NAME",
    "sampler_name": "NAME",
    "allow_path": "PATH",
}


class _CommaList(click.types.UnprocessedParamType):
    """An element of a list, whose elements an environment variable separates by commas."""

    envvar_list_splitter = ","


_COMMA_LIST = _CommaList()


def flag_of(name: str) -> str:
    """Return the flag that sets a setting."""
    return f"--{name.replace('_', '-')}"


def check_variables(variables: Iterable[str], names: Collection[str]) -> None:
    """Raise click.ClickException for an environment variable that is a misspelt setting.

    Variables that are like no setting are others': clients have some, and Kubernetes names a service's address so.

    Args:
        variables: names of environment variables.
        names: names of the settings.
    """
    for variable in sorted(variables):
        name = variable.removeprefix(PREFIX).lower()
        if variable.startswith(PREFIX) and name not in names and not _SERVICE.search(variable):
            for similar in difflib.get_close_matches(name, names, n=1, cutoff=_LIKENESS):
                known = PREFIX + similar.upper()
                raise click.ClickException(f"{variable}: expected the name of a setting; did you mean {known}?")


def option(field: FlatField) -> click.Option:
    """Return the option for a setting. Its value is checked later, with the values of all others."""
    name, info, flag = field.name, field.info, flag_of(field.name)
    is_flag, default = info.annotation is bool, _shown_default(info)
    return click.Option(
        [f"{flag}/--no{flag[1:]}" if is_flag else flag, name],
        help=(info.description or "") + (f"  [default: {default}]" if default else ""),
        metavar=_metavar(name, info),
        type=click.BOOL if is_flag else _COMMA_LIST if name in LISTS else click.UNPROCESSED,
        default=None,
        multiple=name in LISTS,
        envvar=PREFIX + name.upper(),
        required=False,
    )


def _shown_default(info: FieldInfo) -> str:
    default = info.default
    if info.is_required() or default is None or default is False:
        return ""
    return ",".join(map(str, default)) if isinstance(default, (tuple, dict)) else str(default)


def _metavar(name: str, info: FieldInfo) -> str | None:
    if info.annotation is bool:
        return None
    kinds = info.annotation, *get_args(info.annotation)
    if choices := [arg for kind in kinds for arg in get_args(kind) if isinstance(arg, str)]:
        return "|".join(choices)
    if name in _METAVARS:
        return _METAVARS[name]
    if name in LISTS:
        return "NAME"
    if {dict, tuple} & {get_origin(kind) for kind in kinds}:
        return "JSON"
    labels = {int: "N", float: "X", Path: "FILE"}
    return next(label for kind, label in labels.items() if kind in kinds)
