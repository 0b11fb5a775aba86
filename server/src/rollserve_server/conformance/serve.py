"""The process of a server of the kit; `server.py` starts it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gymnasium

from rollserve_server.cli import main
from rollserve_server.conformance.recording import RpcRecorder
from rollserve_server.serving import Extras
from rollserve_server.serving import run as serve
from rollserve_server.testing.serve import with_faults

if TYPE_CHECKING:
    from rollserve_server.settings import Settings

__all__: list[str] = []


def _serve(settings: Settings) -> int:
    gymnasium.register("Conformance-v0", "rollserve_server.conformance.environment:ConformanceEnv")
    recorder, faulty = RpcRecorder(), with_faults()
    answers = {"script": recorder.add_script, "records": recorder.report, "forget-records": recorder.forget}
    return serve(settings, Extras(faulty.make_backend, [recorder, *faulty.interceptors], {**faulty.answers, **answers}))


if __name__ == "__main__":
    main(prog_name="rollserve-server", obj=_serve)
