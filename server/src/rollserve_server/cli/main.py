"""The command `rollserve-server`: reads settings from flags, variables and a file, and runs a server."""

from __future__ import annotations

import difflib
import functools
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_origin

import click
import pydantic
import yaml
from click.core import ParameterSource

from rollserve_server import __version__
from rollserve_server.backups import backup_command
from rollserve_server.check_env import check_env_command
from rollserve_server.errors import InvalidValueError, shorten
from rollserve_server.init_tls import init_tls_command
from rollserve_server.settings import Settings
from rollserve_server.tokens import token_command
from rollserve_server.yaml_texts import parse_yaml

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from pydantic.fields import FieldInfo
    from pydantic_core import ErrorDetails

    from rollserve_server.settings import FlatField

__all__ = ["main"]

_PREFIX = "ROLLSERVE_"
"""Beginning of the names of environment variables that hold settings."""
_LISTS = ("allow_module", "allow_host", "allow_method", "allow_path", "onnx_providers", "callbacks", "otlp_signals")
"""Settings whose option can be given more than once."""
_LIKENESS = 0.75
"""Least likeness of a misspelt name to a known one; 1 for equal names."""
_SERVICE = re.compile(r"_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_\w+)?)$")
"""End of variables that Kubernetes sets for a service."""
_METAVARS = {
    "data_dir": "FOLDER",
    "env": "ID",
    "health_listen": "HOST:PORT",
    "jwt_audience": "TEXT",
    "jwt_issuer": "URL",
    "jwt_scope_claim": "NAME",
    "listen": "HOST:PORT",
    "metrics_listen": "HOST:PORT",
    "otlp_endpoint": "URL",
    "ray_address": "ADDRESS",
    "ray_namespace": "NAME",
    "sampler_name": "NAME",
    "allow_host": "HOST",
    "allow_path": "PATH",
}
_HELP = f"""Sample episodes of a policy acting in environments, for trainers in any language, over gRPC.

    \b
    rollserve-server --env CartPole-v1 --workers 2
    rollserve-server --env ALE/Pong-v5 --listen 0.0.0.0:50051 --tls-cert server.pem --tls-key server-key.pem
    rollserve-server --config rollserve.yaml
    rollserve-server check-env CartPole-v1
    rollserve-server init-tls certificates --name server.lab
    rollserve-server token create --file tokens.json --name alice --scope sample --scope agent:write

Each option can also be set by an environment variable, named like it with {_PREFIX} in front ({_PREFIX}ENV_KWARGS), or
by a key of a YAML file (env_kwargs: …); both have underscores where the option has hyphens. A flag goes before the
variable, the variable before the file. On SIGHUP, and by `rollserve admin reload`, the file is read again: new values
of reloadable options count at once, and the log names others.
"""
_FIELDS = [field for field in Settings.flat_fields() if field.info.description is not None]
_NAMES = [field.name for field in _FIELDS]
_CONFIG_PATH = f"{__name__}.config"
"""Key of the configuration file's path in the context."""
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


class _CommaList(click.types.UnprocessedParamType):
    """An element of a list, whose elements an environment variable separates by commas."""

    envvar_list_splitter = ","


def _flag_of(name: str) -> str:
    """Return the flag that sets a setting."""
    return f"--{name.replace('_', '-')}"


def _check_variables(variables: Iterable[str], names: Collection[str]) -> None:
    """Raise click.ClickException for an environment variable that is a misspelt setting.

    Variables that are like no setting are others': clients have some, and Kubernetes names a service's address so.

    Args:
        variables: names of environment variables.
        names: names of the settings.
    """
    for variable in sorted(variables):
        name = variable.removeprefix(_PREFIX).lower()
        if variable.startswith(_PREFIX) and name not in names and not _SERVICE.search(variable):
            for similar in difflib.get_close_matches(name, names, n=1, cutoff=_LIKENESS):
                known = _PREFIX + similar.upper()
                raise click.ClickException(f"{variable}: expected the name of a setting; did you mean {known}?")


def _option(field: FlatField) -> click.Option:
    """Return the option for a setting. Its value is checked later, with the values of all others."""
    name, info, flag = field.name, field.info, _flag_of(field.name)
    is_flag, default = info.annotation is bool, _shown_default(info)
    return click.Option(
        [f"{flag}/--no{flag[1:]}" if is_flag else flag, name],
        help=(info.description or "")
        + (" Reloadable." if field.is_reloadable else "")
        + (f"  [default: {default}]" if default else ""),
        metavar=_metavar(name, info),
        type=click.BOOL if is_flag else _CommaList() if name in _LISTS else click.UNPROCESSED,
        default=None,
        multiple=name in _LISTS,
        envvar=_PREFIX + name.upper(),
        required=False,
    )


def _shown_default(info: FieldInfo) -> str:
    default = info.default
    if info.is_required() or default is None or default is False:
        return ""
    if isinstance(default, float):
        return f"{default:g}"
    return ",".join(map(str, default)) if isinstance(default, (tuple, dict)) else str(default)


def _metavar(name: str, info: FieldInfo) -> str | None:
    if info.annotation is bool:
        return None
    kinds = info.annotation, *get_args(info.annotation)
    if choices := [arg for kind in kinds for arg in get_args(kind) if isinstance(arg, str)]:
        return "|".join(choices)
    if name in _METAVARS:
        return _METAVARS[name]
    if name in _LISTS:
        return "NAME"
    if {dict, tuple} & {get_origin(kind) for kind in kinds}:
        return "JSON"
    labels = {int: "N", float: "X", Path: "FILE"}
    return next(label for kind, label in labels.items() if kind in kinds)


def _read_config(context: click.Context, _: click.Parameter, path: Path | None) -> None:
    """Make the values of the file the defaults of the options; without a file, do nothing.

    Raises:
        click.ClickException: the file cannot be read, or a key is unknown.
    """
    context.meta[_CONFIG_PATH] = path
    context.default_map = _values_of(path)


def _values_of(path: Path | None) -> dict[str, Any]:
    """Return the settings in the file, by their names; raises as `_read_config`."""
    values = {} if path is None else _checked(path, _load(path))
    return {name: value for name, value in values.items() if value is not None}


def _load(path: Path) -> Any:
    try:
        return parse_yaml(path.read_text()) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise click.ClickException(f"config: {path} cannot be read: {' '.join(str(error).split())}") from None


def _checked(path: Path, values: Any) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise click.ClickException(f"config: {path}: expected keys and values, got {type(values).__name__}")
    for key in values:
        if key not in _NAMES:
            similar = str(key).replace("-", "_")
            hint = f": did you mean {similar!r}?" if similar in _NAMES else ""
            raise click.ClickException(f"config: {path}: expected names of settings, got {str(key)!r}{hint}")
    return values | {name: _as_list(path, name, values[name]) for name in _LISTS if values.get(name) is not None}


def _as_list(path: Path, name: str, value: Any) -> list[str]:
    elements = [value] if isinstance(value, str) else value
    if not (isinstance(elements, list) and all(isinstance(element, str) for element in elements)):
        raise click.ClickException(f"config: {path}: {name}: expected a list of texts, got {value!r}")
    return elements


def _explain(context: click.Context, error: ErrorDetails) -> str:
    """Return one line on an invalid setting."""
    name, path = _name_and_path(error)
    if error["type"] == "missing" and not path:
        return f"{name}: expected a value, got none: give {_flag_of(name)}, {_PREFIX}{name.upper()} or the key {name}"
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
            return _flag_of(name)
        case ParameterSource.ENVIRONMENT:
            return _PREFIX + name.upper()
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


def _parsed(context: click.Context, values: Mapping[str, Any]) -> Settings:
    try:
        return Settings.from_flat({name: value for name, value in values.items() if value not in (None, ())})
    except pydantic.ValidationError as error:
        raise click.ClickException("\nError: ".join(_explain(context, each) for each in error.errors())) from None


def _read_again(context: click.Context, options: Mapping[str, Any]) -> Settings:
    """Return the settings by the present contents of the file; flags and variables are as they were.

    Raises:
        InvalidValueError: the file cannot be read, or a value is invalid.
    """
    given = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)
    fixed = {name: value for name, value in options.items() if context.get_parameter_source(name) in given}
    try:
        return _parsed(context, {**_values_of(context.meta[_CONFIG_PATH]), **fixed})
    except click.ClickException as error:
        raise InvalidValueError(error.message) from None


def _run(context: click.Context, /, **options: Any) -> None:
    if context.invoked_subcommand is not None:
        return
    _check_variables(os.environ, [*_NAMES, "config"])
    settings = _parsed(context, options)
    # Imported late: Ray and gymnasium take a second, which --help and a wrong option need not.
    from rollserve_server.serving import run

    sys.exit((context.obj or run)(settings, functools.partial(_read_again, context, options)))


_CONFIG = click.Option(
    ["--config"],
    help="A YAML file with any of these settings, which is read again on SIGHUP.",
    metavar="FILE",
    type=click.Path(path_type=Path),
    envvar=f"{_PREFIX}CONFIG",
    is_eager=True,
    expose_value=False,
    callback=_read_config,
)


main = click.Group(
    "rollserve-server",
    commands=[backup_command, check_env_command, init_tls_command, token_command],
    invoke_without_command=True,
    subcommand_metavar="[backup … | check-env … | init-tls … | token …]",
    callback=click.pass_context(_run),
    params=[
        *map(_option, _FIELDS),
        _CONFIG,
        *click.version_option(__version__)(click.Command("")).params,
    ],
    help=_HELP,
    context_settings={"max_content_width": 110},
)
"""The entry point. With `obj`, a function of the same arguments as `run`, that function serves in its place."""
