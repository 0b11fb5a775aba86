"""The one who updates the sampler, and takes down which version holds what."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from faults.chaos.catalogue import AGENTS, ENVS, MOST_WORKERS, agent, parameters
from faults.chaos.events import EventLog

import rollserve

__all__ = ["Updates"]

_FIRST_ENV = "cart"
"""What the server starts with."""
_TIMEOUT = 60.0


class Updates:
    """Updates agents and environments; nobody else does."""

    def __init__(self, address: str, log: EventLog, envs: Sequence[str]) -> None:
        """For a server, with these environments of the catalogue to choose from."""
        self._sampler = rollserve.connect(address, timeout=_TIMEOUT)
        self._log = log
        self._envs = envs
        self._forget()

    def close(self) -> None:
        self._sampler.close()

    def begin(self, draw: float) -> None:
        """Looks at a server that has just started, and gives it an agent if it has none."""
        status = self._status()
        if status.policy_version == 0:  # it is a new one
            self._forget()
            self._take("env", _FIRST_ENV, status.env_version)
            self.update_agent(draw)
        elif self._unanswered is not None:
            kind, name = self._unanswered
            version = status.policy_version if kind == "agent" else status.env_version
            if version > self._versions.get(kind, 0):
                self._take(kind, name, version)

    def update_agent(self, draw: float) -> None:
        """Sends another agent that fits."""
        fitting = AGENTS[ENVS[self._names["env"]].family]
        name = fitting[int(draw * len(fitting))]
        self._update("agent", name, lambda: self._sampler.update_agent(agent(name)))

    def update_parameters(self, draw: float) -> None:
        """Sends the parameters of an agent of the same structure, or an agent if there is none."""
        kind = self._names.get("agent", "").partition(" ")[0]
        fitting = AGENTS[ENVS[self._names["env"]].family]
        same = [name for name in fitting if name.partition(" ")[0] == kind and parameters(name) is not None]
        if not same:
            self.update_agent(draw)
            return
        name = same[int(draw * len(same))]
        self._update("agent", name, lambda: self._sampler.update_agent(parameters(name)))

    def update_env(self, draw: float) -> None:
        """Sends another environment, and an agent if the one that is there does not fit it."""
        name, before = self._envs[int(draw * len(self._envs))], self._names["env"]
        self._update("env", name, lambda: self._sampler.update_env(ENVS[name].spec).env_version)
        if ENVS[self._names["env"]].family != ENVS[before].family:
            self.update_agent(draw)

    def resize(self, draw: float) -> None:
        """Has the sampler have another number of workers."""
        self._send("pool", lambda: self._sampler.resize(1 + int(draw * MOST_WORKERS)))

    def _forget(self) -> None:
        self._names: dict[str, str] = {}
        self._versions: dict[str, int] = {}
        self._unanswered: tuple[str, str] | None = None
        self._untold: list[tuple[str, int, str]] = []
        self._run = ""

    def _update(self, kind: str, name: str, send: Callable[[], int]) -> None:
        version = self._send(kind, send)
        if version is None:
            self._unanswered = kind, name
        else:
            self._unanswered = None
            self._take(kind, name, version)

    def _send(self, kind: str, send: Callable[[], int]) -> int | None:
        """Sends something, and takes down how that ended; returns the answer, if there is one."""
        try:
            answer = send()
        except rollserve.RollserveError as error:
            self._log.write("updated", kind=kind, outcome=error.reason or error.code.name, text=str(error))
            return None
        self._log.write("updated", kind=kind, outcome="ok")
        return answer

    def _take(self, kind: str, name: str, version: int) -> None:
        """Takes down which version something is, as soon as it is known in which run of the sampler."""
        self._names[kind], self._versions[kind] = name, version
        self._untold.append((kind, version, name))
        if "agent" in self._versions:
            self._run = self._run or self._ask_run()
        if self._run:
            for told, number, of in self._untold:
                self._log.write("version", kind=told, run=self._run, version=number, name=of)
            self._untold.clear()

    def _status(self) -> rollserve.SamplerStatus:
        """How the sampler is. A connection that has just failed is not tried again at once."""
        deadline = time.monotonic() + _TIMEOUT
        while True:
            try:
                return self._sampler.status()
            except rollserve.UnavailableError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def _ask_run(self) -> str:
        """Which run of the sampler this is, as streams tell; empty if it cannot be asked."""
        try:
            with self._sampler.stream_samples(1, seed=0) as stream:
                next(stream)
                beginning = stream._reader.resumption._beginning
                return "" if beginning is None else beginning.sampler_run
        except rollserve.RollserveError:
            return ""
