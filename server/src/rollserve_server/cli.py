"""The command line `rollserve-server`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, get_args, get_origin

import click
import pydantic
import yaml

from rollserve_server import __version__
from rollserve_server.check_env_cli import check_env_command
from rollserve_server.settings import Settings

__all__ = ["main"]

_PREFIX = "ROLLSERVE_"
_REPEATED = ("allow_module", "allow_method")
"""Options that can be given more than once."""

_HELP = f"""Sample episodes of a policy acting in environments, for trainers in any language, over gRPC.

    \b
    rollserve-server --env CartPole-v1 --workers 2
    rollserve-server --env ALE/Pong-v5 --listen 0.0.0.0:50051
    rollserve-server --config rollserve.yaml
    rollserve-server check-env CartPole-v1

Each option can also be set by an environment variable, named like it with {_PREFIX} in front ({_PREFIX}WORKERS=2), or
by a key of a YAML file (workers: 2). A flag goes before the variable, the variable before the file.
"""


def _option(name: str, field: pydantic.fields.FieldInfo) -> click.Option:
    flag = f"--{name.replace('_', '-')}"
    default = (
        "" if field.is_required() or field.default in (None, {}, ()) or field.default is False else str(field.default)
    )
    return click.Option(
        [f"{flag}/--no{flag[1:]}" if field.annotation is bool else flag, name],
        help=(field.description or "") + (f"  [default: {default}]" if default else ""),
        metavar=_metavar(name, field),
        type=click.BOOL if field.annotation is bool else click.UNPROCESSED,
        default=None,
        multiple=name in _REPEATED,
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
        "allow_module": "NAME",
        "allow_method": "NAME",
        "ray_address": "ADDRESS",
    }
    if name in named:
        return named[name]
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
        raise click.ClickException(f"config: {path}: unknown key {unknown[0]!r}")
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
    from rollserve_server.serving import run

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
    message = error["msg"].removeprefix("Value error, ")
    return f"{'.'.join([name, *path])}{where}: {message}, but {error['input']!r} came"


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
