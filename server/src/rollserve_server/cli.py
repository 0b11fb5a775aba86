"""The command line `rollserve-server`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, get_args, get_origin

import click
import pydantic
import yaml

from rollserve_server import __version__
from rollserve_server.check_env.command import check_env_command
from rollserve_server.errors import shorten
from rollserve_server.settings import Settings

__all__ = ["main"]

_PREFIX = "ROLLSERVE_"

_MOST_SHOWN = 200

_EXPECTED = {
    "bool_parsing": "true or false was expected",
    "bool_type": "true or false was expected",
    "dict_type": "a JSON object was expected",
    "extra_forbidden": "name and kwargs alone were expected",
    "finite_number": "a finite number was expected",
    "float_parsing": "a number was expected",
    "float_type": "a number was expected",
    "greater_than": "more than {gt} was expected",
    "greater_than_equal": "at least {ge} was expected",
    "int_from_float": "a whole number was expected",
    "int_parsing": "a whole number was expected",
    "int_type": "a whole number was expected",
    "less_than": "less than {lt} was expected",
    "less_than_equal": "at most {le} was expected",
    "literal_error": "{expected} was expected",
    "missing": "it is missing",
    "model_type": 'a JSON object {{"name": "…", "kwargs": {{…}}}} was expected',
    "path_type": "a path was expected",
    "string_type": "a text was expected",
    "too_long": "at most {max_length} elements were expected",
    "tuple_type": "a JSON list was expected",
}
"""By pydantic's name of the error."""

_HELP = f"""Sample episodes of a policy acting in environments, for trainers in any language, over gRPC.

    \b
    rollserve-server --env CartPole-v1 --workers 2
    rollserve-server --env ALE/Pong-v5 --listen 0.0.0.0:50051
    rollserve-server --config rollserve.yaml
    rollserve-server check-env CartPole-v1

Each option can also be set by an environment variable, named like it with {_PREFIX} in front ({_PREFIX}ENV_KWARGS), or
by a key of a YAML file (env_kwargs: …); both have underscores where the option has hyphens. A flag goes before the
variable, the variable before the file.
"""


class _Commas(click.types.UnprocessedParamType):
    """A part of a list that has commas between its parts in an environment variable."""

    envvar_list_splitter = ","


_COMMAS = _Commas()
_LISTS = ("allow_module", "allow_method", "allow_path", "onnx_providers")
"""Options that can be given more than once."""


def _option(name: str, field: pydantic.fields.FieldInfo) -> click.Option:
    flag = f"--{name.replace('_', '-')}"
    default = (
        "" if field.is_required() or field.default in (None, {}, ()) or field.default is False else str(field.default)
    )
    return click.Option(
        [f"{flag}/--no{flag[1:]}" if field.annotation is bool else flag, name],
        help=(field.description or "") + (f"  [default: {default}]" if default else ""),
        metavar=_metavar(name, field),
        type=click.BOOL if field.annotation is bool else _COMMAS if name in _LISTS else click.UNPROCESSED,
        default=None,
        multiple=name in _LISTS,
        envvar=_PREFIX + name.upper(),
        required=False,
    )


def _metavar(name: str, field: pydantic.fields.FieldInfo) -> str | None:
    if field.annotation is bool:
        return None
    if choices := [arg for arg in get_args(field.annotation) if isinstance(arg, str)]:
        return "|".join(choices)
    named = {
        "env": "ID",
        "listen": "HOST:PORT",
        "ray_address": "ADDRESS",
        "ray_namespace": "NAME",
        "allow_path": "PATH",
    }
    if name in named:
        return named[name]
    if name in _LISTS:
        return "NAME"
    if get_origin(field.annotation) in (dict, tuple):
        return "JSON"
    kinds = {int: "N", float: "X", Path: "FILE"}
    return next(label for kind, label in kinds.items() if kind in (field.annotation, *get_args(field.annotation)))


def _read_config(context: click.Context, _: click.Parameter, path: Path | None) -> None:
    """Makes the file's keys the defaults of the options."""
    if path is None:
        return
    try:
        values = yaml.safe_load(path.read_text()) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise click.ClickException(f"config: {path} cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise click.ClickException(f"config: {path}: keys and values were expected")
    unknown = [str(key) for key in values if key not in Settings.model_fields]
    if unknown:
        meant = unknown[0].replace("-", "_")
        hint = f", did you mean {meant!r}?" if meant in Settings.model_fields else ""
        raise click.ClickException(f"config: {path}: unknown key {unknown[0]!r}{hint}")
    for name in _LISTS:
        value = values.get(name) or []
        values[name] = [value] if isinstance(value, str) else value
        if not (isinstance(values[name], list) and all(isinstance(part, str) for part in values[name])):
            raise click.ClickException(f"config: {path}: {name}: a list of texts was expected, but {value!r} came")
    context.default_map = {key: value for key, value in values.items() if value is not None}


def _run(context: click.Context, /, **options: Any) -> None:
    if context.invoked_subcommand is not None:
        return
    given = {name: value for name, value in options.items() if value not in (None, ())}
    try:
        settings = Settings(**given)
    except pydantic.ValidationError as error:
        raise click.ClickException("\nError: ".join(_explain(context, one) for one in error.errors())) from None
    # Imported late: Ray and gymnasium take a second, which --help and a wrong option need not.
    from rollserve_server.serving.process import run

    sys.exit(run(settings))


def _explain(context: click.Context, error: Any) -> str:
    """One line on one setting: its name, where it was set, and what is wrong."""
    name, *path = (str(part) for part in error["loc"])
    if error["type"] == "missing" and not path:
        return f"{name}: missing: give --{name.replace('_', '-')}, {_PREFIX}{name.upper()} or the key {name}"
    sources = {
        click.core.ParameterSource.COMMANDLINE: f"--{name.replace('_', '-')}",
        click.core.ParameterSource.ENVIRONMENT: _PREFIX + name.upper(),
        click.core.ParameterSource.DEFAULT_MAP: "the configuration file",
    }
    source = context.get_parameter_source(name)
    where = f" (from {sources[source]})" if source in sources else ""
    came = shorten(repr(error["input"]), _MOST_SHOWN)
    return f"{'.'.join([name, *path])}{where}: {_expected(error)}, but {came} came"


def _expected(error: Any) -> str:
    """What was expected, in the words of those who write settings and not of those who validate them."""
    expected = _EXPECTED.get(error["type"])
    return error["msg"].removeprefix("Value error, ") if expected is None else expected.format(**error.get("ctx", {}))


_CONFIG = click.Option(
    ["--config"],
    help="A YAML file with any of these settings.",
    metavar="FILE",
    type=click.Path(path_type=Path),
    envvar=f"{_PREFIX}CONFIG",
    is_eager=True,
    expose_value=False,
    callback=_read_config,
)

main = click.Group(
    "rollserve-server",
    commands=[check_env_command],
    invoke_without_command=True,
    subcommand_metavar="[check-env …]",
    callback=click.pass_context(_run),
    params=[
        *(_option(name, field) for name, field in Settings.model_fields.items()),
        _CONFIG,
        *click.version_option(__version__)(click.Command("")).params,
    ],
    help=_HELP,
    context_settings={"max_content_width": 110},
)
"""The entry point."""
