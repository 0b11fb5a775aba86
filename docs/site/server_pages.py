"""Pages of the server's options and metrics, with the texts of `--help` and of `/metrics`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from click import Option

from rollserve_server.cli import main
from rollserve_server.metrics import known_metrics
from rollserve_server.settings import Settings

if TYPE_CHECKING:
    from prometheus_client import Metric

__all__ = ["server_pages"]

_MIB = 1 << 20
_ABOUT = """# Server options

`rollserve-server --help` shows this table, too. Each option is a flag, an environment variable, and a key of the file
that `--config` names: the flag's name with underscores, such as `env_kwargs`. [Run a server](../server.md) says what to
choose."""
_METRICS = """# Metrics

`curl HOST:PORT/metrics` shows these names, kinds and meanings, too. All but those of the process and its RPCs have the
label `sampler`. [Watch a server](../metrics.md) says how to read them."""


def server_pages() -> Iterator[tuple[str, str]]:
    """Yield the file and the text of each page."""
    yield "server-options.md", "\n\n".join([_ABOUT, *_groups()]) + "\n"
    rows = [_metric(family) for family in known_metrics()]
    yield "metrics.md", "\n".join([_METRICS, "", "| metric | kind | meaning |", "|---|---|---|", *rows]) + "\n"


def _groups() -> Iterator[str]:
    """Yield the blocks of each group of settings: what it is about, and its options."""
    options = {option.name: option for option in main.params if isinstance(option, Option)}
    groups: dict[tuple[str, ...], list[str]] = {}
    for field in Settings.flat_fields():
        if field.name in options:
            groups.setdefault(field.path, []).append(_row(options[field.name]))
    for path, rows in groups.items():
        about = _about(path)
        title = re.split(r"[:;,.]", about, maxsplit=1)[0]
        short = title.removeprefix("Settings of ")
        yield f"## {short[0].upper()}{short[1:]}"
        if about != f"{title}.":
            yield about
        yield "\n".join(["| option | default | meaning |", "|---|---|---|", *rows])


def _about(path: tuple[str, ...]) -> str:
    """Return the first line of the docstring of a group, by the names of the groups around its settings."""
    group: type = Settings
    for name in path:
        group = group.model_fields[name].annotation  # type: ignore[attr-defined]
    return (inspect.getdoc(group) or "").partition("\n")[0]


def _row(option: Option) -> str:
    meaning, _, default = (option.help or "").partition("  [default: ")
    names = "<br>".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts, option.envvar])
    return f"| {names} | {_cell(_default(option, default.removesuffix(']')))} | {_cell(meaning)} |"


def _default(option: Option, shown: str) -> str:
    if option.secondary_opts:
        return "on" if shown else "off"
    if option.opts[0].endswith("-bytes") and shown.isdecimal() and int(shown) >= _MIB:
        return f"{int(shown) // _MIB} MiB"
    return shown


def _metric(family: Metric) -> str:
    end = "_total" if family.type == "counter" else ""
    return f"| `{family.name}{end}` | {family.type} | {_cell(family.documentation)} |"


def _cell(text: str) -> str:
    """Return text for a cell, with flags and JSON as code, and without what Markdown would take for markup."""
    parts = re.split(r"(--[a-z-]+|[\[{].*[\]}])", re.sub(r"([|<*])", r"\\\1", text))
    parts[1::2] = [f"`{part}`" for part in parts[1::2]]
    return "".join(parts)
