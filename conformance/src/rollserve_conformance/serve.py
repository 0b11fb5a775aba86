"""The process of a server of the kit; `server.py` starts it."""

from __future__ import annotations

import gymnasium

from rollserve_server.testing.serve import serve

__all__: list[str] = []


def _main() -> None:
    # Imported behind the server, which decides the ciphers that gRPC reads once, when it is imported.
    from rollserve_conformance.recording import RpcRecorder

    gymnasium.register("Conformance-v0", "rollserve_conformance.environment:ConformanceEnv")
    recorder = RpcRecorder()
    answers = {"script": recorder.add_script, "records": recorder.report, "forget-records": recorder.forget}
    serve([recorder], answers)


if __name__ == "__main__":
    _main()
