"""Walks of calls: which modules of the client and of the server a call passes. `python -m walks` writes docs/walks.md.

A server with threads as workers (one worker with two rows) runs in a process of its own, which this module starts as
its program. Each call is made once, so that nothing is made for the first time, and observed when it is made again,
several times.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "walks.md"
FOLDER = "WALKS_FOLDER"
OPTIONS = ("--backend", "in-process", "--workers", "1", "--vectorization", "rows", "--rows", "2")
NUM_LOOKS = 8
"""How often a call is observed for the shortest of its walks: a worker on a busy machine may need several orders."""
HEAD = """\
# Walks

The modules that a call passes, in the client and in the server, in the order in which it enters them first: a row for
each room, and the modules within it. The later calls pass those of `obtain_samples(60)`, too, except where a row says
otherwise. `make walks` makes the calls and writes this page; a test compares.
[architecture.md](architecture.md#walks) tells what happens on the way.
"""

Walk = Mapping[str, list[str]]
"""Modules that a call enters in the client, and in the server, each in the order in which it enters them first."""


class Observer:
    """Notes each module of Rollserve whose functions run while it is on, in all threads that start later."""

    def __init__(self) -> None:
        self.is_on = False
        self.modules: dict[str, None] = {}
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def _note(self, frame: Any, event: str, _: object) -> None:
        if not self.is_on or event != "call":
            return
        _, _, module = frame.f_code.co_filename.rpartition("/src/")
        if module.startswith("rollserve") and "/v1/" not in module:
            self.modules.setdefault(module)


def walks() -> Iterator[tuple[str, Walk]]:
    """Make each call, and yield what it is and its walk."""
    import rollserve
    from rollserve_server.local import local_server

    with tempfile.TemporaryDirectory() as name:
        folder, observer = Path(name), Observer()
        environment = {FOLDER: name, "PYTHONPATH": os.pathsep.join(["tests/helpers", os.environ.get("PYTHONPATH", "")])}

        def observed(call: Callable[[], object]) -> Walk:
            ask(folder, "on")
            observer.modules.clear()
            observer.is_on = True
            call()
            observer.is_on = False
            return {"client": list(observer.modules), "server": json.loads(ask(folder, "off"))}

        def walk(call: Callable[[], object]) -> Walk:
            call()
            return min((observed(call) for _ in range(NUM_LOOKS)), key=lambda found: sum(map(len, found.values())))

        options = (*OPTIONS, "--env", "CartPole-v1")
        with (
            local_server(*options, environment=environment, module="walks", log=folder / "log") as server,
            rollserve.connect(server.address) as sampler,
        ):
            env = sampler.update_env("CartPole-v1")
            agent = rollserve.MlpAgent.initial(env.observation_space, env.action_space, seed=1)
            sampler.update_agent(agent)
            yield "update_agent(parameters)", walk(lambda: sampler.update_agent(agent.parameters))
            yield "obtain_samples(60)", walk(lambda: sampler.obtain_samples(60, seed=2))
            yield "obtain_fragments(200)", walk(lambda: sampler.obtain_fragments(200))
            sampler.update_env(rollserve.EnvSpec("mpe/simple_spread-v3", multi_agent="parallel"))
            sampler.update_agent({"all": rollserve.RandomAgent()})
            yield "obtain_samples(20), many agents", walk(lambda: sampler.multi_agent.obtain_samples(20, seed=2))
        sys.setprofile(None)
        threading.setprofile(None)


def page(found: Iterator[tuple[str, Walk]]) -> str:
    """Return the page of some walks."""
    parts, known = [HEAD], {"client": set[str](), "server": set[str]()}
    for name, walk in found:
        parts.append(f"\n## `{name}`\n".replace(", many agents`", "` with many agents"))
        for side, modules in walk.items():
            parts.append(f"\n| {side}: {len(modules)} modules | |\n|---|---|\n")
            parts += _rows("", [module for module in modules if module not in known[side]])
            parts += _rows("not ", sorted(known[side].difference(modules)))
            if name.startswith("obtain_samples(60)"):
                known[side] = set(modules)
    return "".join(parts)


def _rows(prefix: str, modules: list[str]) -> list[str]:
    """Return the rows of a table: a row for each room, with its modules in their order."""
    rooms: dict[str, list[str]] = {}
    for module in modules:
        room, _, own = module.partition("/")
        if room == "rollserve_server" and "/" in own:
            room, _, own = own.partition("/")
            room += "/"
        rooms.setdefault(room, []).append(own)
    return [f"| {prefix}`{room}` | {', '.join(f'`{own}`' for own in names)} |\n" for room, names in rooms.items()]


def ask(folder: Path, order: str) -> str:
    """Have the server begin or end to observe; return what it answers once it has."""
    (folder / "asked").write_text(order)
    (folder / "asked").rename(folder / "order")
    while not (folder / "done").exists():
        time.sleep(0.01)
    answer = (folder / "done").read_text()
    (folder / "done").unlink()
    return answer


def serve(folder: Path) -> None:
    """Run the server, and observe it when it is asked to."""
    observer = Observer()

    def obey() -> None:
        while True:
            if (order := folder / "order").exists():
                observer.is_on = order.read_text() == "on"
                order.unlink()
                (folder / "answered").write_text(json.dumps(list(observer.modules)))
                observer.modules.clear()
                (folder / "answered").rename(folder / "done")
            time.sleep(0.01)

    threading.Thread(target=obey, daemon=True).start()
    sys.argv[0] = "rollserve-server"
    runpy.run_module("rollserve_server", run_name="__main__")


if __name__ == "__main__":
    if FOLDER in os.environ:
        serve(Path(os.environ[FOLDER]))
    else:
        PAGE.write_text(page(walks()))
