"""The command line `rollserve-server check-env`."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, get_args

import click

from rollserve import EnvSpec, Reproducibility, Vectorization, Wrapper

if TYPE_CHECKING:
    from rollserve_server.check_env.runs import Verdict

__all__ = ["check_env_command"]

_NOT_REPRODUCIBLE = 3
_CLASSES = {
    Reproducibility.EPISODE: "class EPISODE: the same seed gives the same episodes, on any worker and after any other",
    Reproducibility.BLOCK: "class BLOCK: the same seed gives the same blocks, on any worker and after any other",
    Reproducibility.WORKER: "class WORKER: the same seed does not give the same episodes again",
}


def _from_json(_: click.Context, parameter: click.Parameter, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} came, JSON was expected: {error}", param=parameter) from None


@click.command("check-env")
@click.argument("env_id", metavar="ID")
@click.option("--env-kwargs", default="{}", metavar="JSON", callback=_from_json, help="Its keyword arguments.")
@click.option(
    "--wrappers",
    default="[]",
    metavar="JSON",
    callback=_from_json,
    help='Wrappers around it, innermost first: [{"name": "…", "kwargs": {…}}, …].',
)
@click.option(
    "--vectorization",
    type=click.Choice(["auto", *get_args(Vectorization)]),
    default="auto",
    show_default=True,
    help="How its rows are stepped; with auto, as a worker would do it: natively where that is offered.",
)
@click.option("--episodes", default=8, show_default=True, type=click.IntRange(2), help="How many episodes to run.")
@click.option(
    "--steps", default=200, show_default=True, type=click.IntRange(1), help="After how many steps to leave each."
)
def check_env_command(
    env_id: str, env_kwargs: Any, wrappers: Any, vectorization: Any, episodes: int, steps: int
) -> None:
    """Find out whether an environment's episodes are functions of their seeds and actions.

    Runs the same episodes on fresh and on used environments, in another order and in another process, and says what
    differs. Exits with 0 if they are always the same, and with 3 if they are not.
    """
    # Imported late: gymnasium takes a while, which --help need not.
    from rollserve_server.check_env.runs import check_env
    from rollserve_server.errors import DomainError

    try:
        made = tuple(Wrapper(each["name"], each.get("kwargs", {})) for each in wrappers)
        spec = EnvSpec(env_id, env_kwargs, made, vectorization=None if vectorization == "auto" else vectorization)
        verdict = check_env(spec, episodes, steps)
    except (AttributeError, KeyError, TypeError):
        raise click.ClickException('wrappers: [{"name": "…", "kwargs": {…}}, …] was expected') from None
    except DomainError as error:
        raise click.ClickException(str(error)) from None
    _show(env_id, verdict)
    sys.exit(_NOT_REPRODUCIBLE if verdict.reproducibility is Reproducibility.WORKER else 0)


def _show(env_id: str, verdict: Verdict) -> None:
    what = "episodes" if verdict.num_rows is None else f"blocks of {verdict.num_rows} rows that are stepped together"
    click.echo(f"{env_id}: {verdict.num_episodes} {what}, {verdict.num_steps} steps each time")
    known: set[str] = set()
    for finding in verdict.findings:
        found = [difference for difference in finding.differences if difference.name not in known]
        known.update(difference.name for difference in found)
        what = "different" if finding.counts else "the same but for infos" if finding.differences else "the same"
        click.echo(f"  {what} {finding.way}" + (f": {finding.cause}" if found else ""))
        for difference in found:
            first, second = (" ".join(text.split()) or "nothing" for text in difference.values)
            where = f"seed {difference.seed}, step {difference.step}"
            click.echo(f"    {difference.name}: {first}, then {second} ({where})")
    if verdict.declared:
        click.echo("  its registration says that it is not deterministic")
    click.echo(_CLASSES[verdict.reproducibility])
