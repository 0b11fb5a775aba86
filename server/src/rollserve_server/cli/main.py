"""The command `rollserve-server`: reads settings and runs a server."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click
import pydantic

from rollserve_server import __version__
from rollserve_server.check_env import check_env_command
from rollserve_server.cli.config_file import read_config
from rollserve_server.cli.explanations import explain
from rollserve_server.cli.options import PREFIX, check_variables, option
from rollserve_server.init_tls import init_tls_command
from rollserve_server.settings import Settings
from rollserve_server.tokens import token_command

__all__ = ["main"]

_HELP = f"""Sample episodes of a policy acting in environments, for trainers in any language, over gRPC.

    \b
    rollserve-server --env CartPole-v1 --workers 2
    rollserve-server --env ALE/Pong-v5 --listen 0.0.0.0:50051 --tls-cert server.pem --tls-key server-key.pem
    rollserve-server --config rollserve.yaml
    rollserve-server check-env CartPole-v1
    rollserve-server init-tls certificates --name server.lab
    rollserve-server token create --file tokens.json --name alice --scope sample --scope agent:write

Each option can also be set by an environment variable, named like it with {PREFIX} in front ({PREFIX}ENV_KWARGS), or
by a key of a YAML file (env_kwargs: …); both have underscores where the option has hyphens. A flag goes before the
variable, the variable before the file.
"""


def _run(context: click.Context, /, **options: Any) -> None:
    if context.invoked_subcommand is not None:
        return
    check_variables(os.environ, [field.name for field in _FIELDS] + ["config"])
    try:
        settings = Settings.from_flat({name: value for name, value in options.items() if value not in (None, ())})
    except pydantic.ValidationError as error:
        raise click.ClickException("\nError: ".join(explain(context, each) for each in error.errors())) from None
    # Imported late: Ray and gymnasium take a second, which --help and a wrong option need not.
    from rollserve_server.serving import run

    sys.exit((context.obj or run)(settings))


_FIELDS = [field for field in Settings.flat_fields() if field.info.description is not None]
_CONFIG = click.Option(
    ["--config"],
    help="A YAML file with any of these settings.",
    metavar="FILE",
    type=click.Path(path_type=Path),
    envvar=f"{PREFIX}CONFIG",
    is_eager=True,
    expose_value=False,
    callback=read_config,
)

main = click.Group(
    "rollserve-server",
    commands=[check_env_command, init_tls_command, token_command],
    invoke_without_command=True,
    subcommand_metavar="[check-env … | init-tls … | token …]",
    callback=click.pass_context(_run),
    params=[
        *map(option, _FIELDS),
        _CONFIG,
        *click.version_option(__version__)(click.Command("")).params,
    ],
    help=_HELP,
    context_settings={"max_content_width": 110},
)
"""The entry point. With `obj`, a function of the settings, that function serves in the place of `run`."""
