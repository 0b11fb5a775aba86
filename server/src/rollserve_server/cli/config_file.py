"""The configuration file: settings by name, as YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import yaml

from rollserve_server.cli.options import LISTS
from rollserve_server.settings import Settings, parse_yaml

__all__ = ["read_config"]


def read_config(context: click.Context, _: click.Parameter, path: Path | None) -> None:
    """Make the values of the file the defaults of the options; without a file, do nothing.

    Raises:
        click.ClickException: the file cannot be read, or a key is unknown.
    """
    if path is not None:
        values = _checked(path, _load(path))
        context.default_map = {key: value for key, value in values.items() if value is not None}


def _load(path: Path) -> Any:
    try:
        return parse_yaml(path.read_text()) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise click.ClickException(f"config: {path} cannot be read: {' '.join(str(error).split())}") from None


def _checked(path: Path, values: Any) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise click.ClickException(f"config: {path}: expected keys and values, got {type(values).__name__}")
    names = {field.name for field in Settings.flat_fields() if field.info.description is not None}
    for key in values:
        if key not in names:
            similar = str(key).replace("-", "_")
            hint = f": did you mean {similar!r}?" if similar in names else ""
            raise click.ClickException(f"config: {path}: expected names of settings, got {str(key)!r}{hint}")
    return values | {name: _as_list(path, name, values[name]) for name in LISTS if values.get(name) is not None}


def _as_list(path: Path, name: str, value: Any) -> list[str]:
    elements = [value] if isinstance(value, str) else value
    if not (isinstance(elements, list) and all(isinstance(element, str) for element in elements)):
        raise click.ClickException(f"config: {path}: {name}: expected a list of texts, got {value!r}")
    return elements
