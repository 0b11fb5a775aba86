"""The process of a server that makes faults on demand; `faulty_server` starts it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click
import gymnasium

from rollserve_server.cli import main
from rollserve_server.serving import Extras, run
from rollserve_server.testing.faults import Faults, FaultyBackend, FaultyRpcs
from rollserve_wire.errors import mismatch

if TYPE_CHECKING:
    from rollserve_server.gateway import Interceptor
    from rollserve_server.serving import Answer, ReadSettings
    from rollserve_server.settings import Settings

__all__ = ["serve"]

_NO_ANSWERS: Mapping[str, Answer] = {}


def serve(interceptors: Sequence[Interceptor] = (), answers: Mapping[str, Answer] = _NO_ANSWERS) -> None:
    """Run `rollserve-server` with faults on demand, by the options of this process, and end the process.

    A module that calls it is a server of its own kind, which `local_server(module=…)` starts.

    Args:
        interceptors: see each RPC before faults are made; gRPC's interceptors for asyncio, such as `rpcs.WrappedRpcs`.
        answers: answer further requests of `LocalServer.request`, by their first words. Each is given what follows the
            word, and returns what the request returns.
    """
    faults = Faults()

    async def add(fault: str) -> str:
        faults.add(fault)
        return ""

    async def report(_: str) -> str:
        return faults.report()

    async def forget(_: str) -> str:
        faults.clear()
        return ""

    def serve_with_faults(settings: Settings, read: ReadSettings) -> int:
        if settings.process.backend != "in-process":
            text = mismatch("'in-process', whose workers can be lost on demand", repr(settings.process.backend))
            raise click.ClickException(f"backend: {text}")
        gymnasium.register("Scripted-v0", "rollserve_server.testing.scripted:Scripted")
        own = {"fault": add, "faults": report, "forget-faults": forget}
        extras = Extras(lambda _: FaultyBackend(faults), [*interceptors, FaultyRpcs(faults)], {**own, **answers})
        return run(settings, read, extras)

    main(prog_name="rollserve-server", obj=serve_with_faults)


if __name__ == "__main__":
    serve()
