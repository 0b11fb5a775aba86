"""The command line of `rollserve-server check-env`."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, get_args

import click

from rollserve_wire.environments import EnvSpec, Reproducibility, Vectorization, Wrapper
from rollserve_wire.errors import mismatch

if TYPE_CHECKING:
    from rollserve_server.check_env.checking import Finding, Verdict

__all__ = ["check_env_command"]

_EXIT_NOT_REPRODUCIBLE = 3
_CLASSES = {
    Reproducibility.EPISODE: "class EPISODE: the same seed gives the same episodes, on any worker and after any other",
    Reproducibility.BLOCK: "class BLOCK: the same seed gives the same blocks, on any worker and after any other",
    Reproducibility.WORKER: "class WORKER: the same seed does not give the same episodes again",
}
_WRAPPERS_EXAMPLE = '[{"name": "…", "kwargs": {…}}, …]'


def _from_json(_: click.Context, parameter: click.Parameter, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise click.BadParameter(mismatch("JSON", repr(text), str(error)), param=parameter) from None


@click.command("check-env")
@click.argument("env_id", metavar="ID")
@click.option("--env-kwargs", default="{}", metavar="JSON", callback=_from_json, help="Keyword arguments.")
@click.option(
    "--wrappers",
    default="[]",
    metavar="JSON",
    callback=_from_json,
    help=f"Wrappers, innermost first: {_WRAPPERS_EXAMPLE}.",
)
@click.option(
    "--vectorization",
    type=click.Choice(["auto", *get_args(Vectorization)], case_sensitive=False),
    default="auto",
    show_default=True,
    help="How rows are stepped. With auto, as a worker steps them: natively where the environment offers it.",
)
@click.option("--episodes", default=8, show_default=True, type=click.IntRange(2), help="Number of episodes.")
@click.option(
    "--steps", default=200, show_default=True, type=click.IntRange(1), help="Maximum number of steps of an episode."
)
def check_env_command(
    env_id: str, env_kwargs: Any, wrappers: Any, vectorization: Any, episodes: int, steps: int
) -> None:
    """Find out whether an environment's episodes are functions of their seeds and actions.

    Runs the same episodes on fresh and on used environments, in another order and in another process, and shows what
    differs. Exits with 0 if nothing but infos differs, and with 3 otherwise.
    """
    # Imported late: gymnasium takes a while to import, which --help does not need.
    from rollserve_server.check_env.checking import check_env
    from rollserve_server.errors import DomainError

    try:
        spec_wrappers = tuple(Wrapper(each["name"], each.get("kwargs", {})) for each in wrappers)
        spec_vectorization = None if vectorization == "auto" else vectorization
        spec = EnvSpec(env_id, env_kwargs, spec_wrappers, vectorization=spec_vectorization)
        verdict = check_env(spec, episodes, steps)
    except (AttributeError, KeyError, TypeError):
        text = mismatch(_WRAPPERS_EXAMPLE, json.dumps(wrappers))
        raise click.ClickException(f"wrappers: {text}") from None
    except DomainError as error:
        raise click.ClickException(str(error)) from None
    _show(env_id, verdict)
    sys.exit(_EXIT_NOT_REPRODUCIBLE if verdict.reproducibility is Reproducibility.WORKER else 0)


def _show(env_id: str, verdict: Verdict) -> None:
    unit = "episodes" if verdict.num_rows is None else f"blocks of {verdict.num_rows} rows that are stepped together"
    click.echo(f"{env_id}: {verdict.num_episodes} {unit}, {verdict.num_steps} steps each time")
    shown: set[str] = set()
    for finding in verdict.findings:
        _show_finding(finding, shown)
    if verdict.declared:
        click.echo("  its registration declares it nondeterministic")
    click.echo(_CLASSES[verdict.reproducibility])


def _show_finding(finding: Finding, shown: set[str]) -> None:
    """Print a finding with the differences of values that are not in `shown`, and add these values."""
    new = [difference for difference in finding.differences if difference.name not in shown]
    shown.update(difference.name for difference in new)
    result = "different" if finding.counts else "the same but for infos" if finding.differences else "the same"
    click.echo(f"  {result} {finding.way}" + (f": {finding.cause}" if new else ""))
    for difference in new:
        first, second = (" ".join(text.split()) or "nothing" for text in difference.values)
        where = f"seed {difference.seed}, step {difference.step}"
        click.echo(f"    {difference.name}: {first}, then {second} ({where})")
