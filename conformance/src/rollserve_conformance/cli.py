"""The command `rollserve-conformance`."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from rollserve_conformance.adapter import AdapterError
from rollserve_conformance.cases import CASES, Case
from rollserve_conformance.kit import CaseOutcome, line_of, prepared_server, run_cases

__all__ = ["main", "table_of"]


_NUMBERS = {name: number for number, name in enumerate(CASES, start=1)}
_WIDTH = max(map(len, CASES))

_SIGNS = {"passed": "✓", "failed": "✗"}


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Test whether a client in any language reads and writes what it has to."""


@main.command("list")
def _list() -> None:
    """Print the cases: number, name, and what each is about."""
    for name, case in CASES.items():
        click.echo(f"{_NUMBERS[name]:3}  {name:{_WIDTH}}  {case.about}")


@main.command("run")
@click.option(
    "--case", "names", multiple=True, metavar="CASE", help="A case, by name or number; repeat it for several."
)
@click.option("--json", "file", type=click.Path(path_type=Path), help="A file to write the outcomes to, for `table`.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def _run(names: Sequence[str], file: Path | None, command: Sequence[str]) -> None:
    """Run cases with an adapter, whose command comes behind `--`; exit with 1 if one fails."""
    outcomes = []
    try:
        for outcome in run_cases(command, _cases(names)):
            outcomes.append(outcome)
            _show(outcome)
    except (AdapterError, RuntimeError) as error:
        raise click.ClickException(str(error)) from None
    if file is not None:
        file.write_text(f"{json.dumps([dataclasses.asdict(outcome) for outcome in outcomes], indent=1)}\n")
    counts = {
        verdict: sum(outcome.verdict == verdict for outcome in outcomes)
        for verdict in ("passed", "failed", "unsupported")
    }
    click.echo(
        f"{len(outcomes)} cases: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    )
    sys.exit(1 if counts["failed"] else 0)


@main.command("serve")
@click.argument("name", metavar="CASE")
def _serve(name: str) -> None:
    """Start a server that is ready for a case, print the adapter's line, and serve until the standard input ends."""
    (case,) = _cases([name])
    try:
        with prepared_server(case) as server:
            click.echo(json.dumps(line_of(case, server)))
            while sys.stdin.buffer.read(1 << 16):
                pass
    except RuntimeError as error:
        raise click.ClickException(str(error)) from None


@main.command("table")
@click.argument("clients", nargs=-1, required=True, metavar="NAME=FILE…")
def _table(clients: Sequence[str]) -> None:
    """Print a table of several clients, in Markdown, from the files that `run --json` wrote."""
    columns = {}
    for client in clients:
        name, _, file = client.partition("=")
        try:
            columns[name] = [CaseOutcome(**outcome) for outcome in json.loads(Path(file).read_text())]
        except (OSError, ValueError, TypeError) as error:
            raise click.ClickException(f"{client}: expected NAME=FILE with outcomes: {error}") from None
    click.echo(table_of(columns))


def _cases(names: Sequence[str]) -> list[Case]:
    by_number = {str(number): name for name, number in _NUMBERS.items()}
    chosen = [by_number.get(name, name) for name in names] or list(CASES)
    if unknown := [name for name in chosen if name not in CASES]:
        raise click.ClickException(
            f"case: expected a name or number of `rollserve-conformance list`, got {unknown[0]!r}"
        )
    return [CASES[name] for name in chosen]


def _show(outcome: CaseOutcome) -> None:
    number = _NUMBERS[outcome.case]
    click.echo(f"{number:3}  {outcome.case:{_WIDTH}}  {outcome.verdict:11}  {outcome.seconds:5.1f} s")
    if outcome.text:
        click.echo("\n".join(f"     {line}" for line in outcome.text.splitlines()))


def table_of(clients: Mapping[str, Sequence[CaseOutcome]]) -> str:
    """Return a table in Markdown: a row for each case, a column for each client, and notes on what one lacks."""
    notes: dict[str, int] = {}
    by_client = {name: {outcome.case: outcome for outcome in outcomes} for name, outcomes in clients.items()}
    lines = [f"| | case | {' | '.join(clients)} |", f"|---|---|{'---|' * len(clients)}"]
    for number, case in enumerate(CASES.values(), start=1):
        signs = [_sign(outcomes.get(case.name), notes) for outcomes in by_client.values()]
        lines.append(f"| {number} | `{case.name}`: {case.about} | {' | '.join(signs)} |")
    return "\n".join([*lines, *(f"\n{number}. {text}" for text, number in notes.items())])


def _sign(outcome: CaseOutcome | None, notes: dict[str, int]) -> str:
    if outcome is None:
        return ""
    if outcome.verdict == "unsupported":
        return f"- ({notes.setdefault(outcome.text, len(notes) + 1)})"
    return _SIGNS[outcome.verdict]
