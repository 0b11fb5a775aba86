"""The process of a server that makes faults on demand; `faulty_server` starts it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import gymnasium

from rollserve_server.cli import main
from rollserve_server.serving import Extras, run
from rollserve_server.testing.faults import Faults, FaultyBackend, FaultyRpcs
from rollserve_wire.errors import mismatch

if TYPE_CHECKING:
    from rollserve_server.settings import Settings

__all__ = ["with_faults"]


def with_faults() -> Extras:
    """Return the parts of a server that makes faults on demand."""
    faults = Faults()

    async def add(fault: str) -> str:
        faults.add(fault)
        return ""

    async def report(_: str) -> str:
        return faults.report()

    async def forget(_: str) -> str:
        faults.clear()
        return ""

    answers = {"fault": add, "faults": report, "forget-faults": forget}
    return Extras(lambda _: FaultyBackend(faults), [FaultyRpcs(faults)], answers)


def _serve(settings: Settings) -> int:
    """Serve with faults; return the exit status of the process."""
    if settings.process.backend != "in-process":
        text = mismatch("'in-process', whose workers can be lost on demand", repr(settings.process.backend))
        raise click.ClickException(f"backend: {text}")
    gymnasium.register("Scripted-v0", "rollserve_server.testing.scripted:Scripted")
    return run(settings, with_faults())


if __name__ == "__main__":
    main(prog_name="rollserve-server", obj=_serve)
