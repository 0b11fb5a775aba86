"""Updates of the sampler, and a record of what each version holds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from faults.chaos.catalogue import AGENTS, ENVS, MAX_WORKERS, agent, parameters
from faults.chaos.events import EventLog
from faults.chaos.service import Service

import rollserve
from rollserve.agents import AgentUpdate

__all__ = ["Updates"]

_FIRST_ENV = "cart"  # of a new server
_TIMEOUT = 60.0
_SHARE_WITH_CALLS = 0.4
"""Share of the updates of agents that calls bring along."""


class Updates:
    """The only client that updates agents and environments."""

    def __init__(self, service: Service, log: EventLog, envs: Sequence[str]) -> None:
        """Connect to a server, and choose among these environments of the catalogue."""
        # Shared: after a restart, agents are sent to the server's own environment.
        self._sampler = service.connect(timeout=_TIMEOUT, shared=True)
        self._log = log
        self._envs = envs
        self._forget()

    def close(self) -> None:
        self._sampler.close()

    def begin(self, draw: float) -> None:
        """Prepare a server after its start: send an agent to a new one, or record an update that was not answered."""
        status = self._status()
        if status.policy_version == 0:  # a new sampler
            name = _FIRST_ENV if status.env_version == 1 else self._last_env()
            self._forget()
            self._record("env", name, status.env_version)
            self.update_agent(draw)
        elif self._unanswered is not None:
            kind, name = self._unanswered
            version = status.policy_version if kind == "agent" else status.env_version
            if version > self._versions.get(kind, 0):
                self._record(kind, name, version)

    def update_agent(self, draw: float) -> None:
        """Send another agent that fits."""
        fitting = AGENTS[ENVS[self._names["env"]].family]
        name = fitting[int(draw * len(fitting))]
        self._update("agent", name, lambda: self._send_agent(agent(name), draw))

    def update_parameters(self, draw: float) -> None:
        """Send parameters of an agent with the same structure, or an agent if there is none."""
        kind = self._names.get("agent", "").partition(" ")[0]
        fitting = AGENTS[ENVS[self._names["env"]].family]
        same = [name for name in fitting if name.partition(" ")[0] == kind and parameters(name) is not None]
        if not same:
            self.update_agent(draw)
            return
        name = same[int(draw * len(same))]
        values = parameters(name)
        assert values is not None
        self._update("agent", name, lambda: self._send_agent(values, draw))

    def update_env(self, draw: float) -> None:
        """Send another environment, and an agent if the current agent does not fit it."""
        name, before = self._envs[int(draw * len(self._envs))], self._names["env"]
        self._update("env", name, lambda: self._sampler.update_env(ENVS[name].spec).env_version)
        if ENVS[self._names["env"]].family != ENVS[before].family:
            self.update_agent(draw)

    def resize(self, draw: float) -> None:
        """Change the number of workers."""
        self._send("pool", lambda: self._sampler.resize(1 + int(draw * MAX_WORKERS)))

    def _send_agent(self, update: AgentUpdate, draw: float) -> int:
        """Update the agent by itself, or with a call; return the new version."""
        if draw * 1000 % 1 >= _SHARE_WITH_CALLS:
            return self._sampler.update_agent(update)
        with self._sampler.stream_samples(1, seed=0, agent=update) as stream:
            next(stream)
            beginning = stream._reader.resumption._beginning
            assert beginning is not None
            return beginning.policy_version

    def _last_env(self) -> str:
        """Return the environment of the last update, which a new sampler got that had another before."""
        if self._unanswered is not None and self._unanswered[0] == "env":
            return self._unanswered[1]
        return self._names["env"]

    def _forget(self) -> None:
        self._names: dict[str, str] = {}
        self._versions: dict[str, int] = {}
        self._unanswered: tuple[str, str] | None = None
        self._unlogged: list[tuple[str, int, str]] = []
        self._run = ""

    def _update(self, kind: str, name: str, send: Callable[[], int]) -> None:
        version = self._send(kind, send)
        if version is None:
            self._unanswered = kind, name
        else:
            self._unanswered = None
            self._record(kind, name, version)

    def _send(self, kind: str, send: Callable[[], int]) -> int | None:
        """Send an update, and log its outcome; returns the answer, or None for an error."""
        try:
            answer = send()
        except rollserve.RollserveError as error:
            self._log.write("updated", kind=kind, outcome=error.reason or error.code.name, text=str(error))
            return None
        self._log.write("updated", kind=kind, outcome="ok")
        return answer

    def _record(self, kind: str, name: str, version: int) -> None:
        """Log what a version holds, as soon as the run of the sampler is known."""
        self._names[kind], self._versions[kind] = name, version
        self._unlogged.append((kind, version, name))
        # A client waits for a server that is away, so that an update may be the first that a new sampler gets.
        run = self._read_run() if "agent" in self._versions else ""
        if run and self._run and run != self._run:
            # The new sampler may have got its environment by an update, too, before it had an agent to tell its run.
            env_version = self._status().env_version
            env = _FIRST_ENV if env_version == 1 else self._names["env"]
            self._forget()
            self._names, self._versions = {"env": env, kind: name}, {"env": env_version, kind: version}
            held = [("env", 1, _FIRST_ENV), ("env", env_version, env), (kind, version, name)]
            self._unlogged = list(dict.fromkeys(held))
        if run:
            self._run = run
            for kind_of_version, number, content in self._unlogged:
                self._log.write("version", kind=kind_of_version, run=self._run, version=number, name=content)
            self._unlogged.clear()

    def _status(self) -> rollserve.SamplerStatus:
        """Return the sampler's status; gRPC does not retry a connection at once, so try until a timeout."""
        deadline = time.monotonic() + _TIMEOUT
        while True:
            try:
                return self._sampler.status()
            except rollserve.UnavailableError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def _read_run(self) -> str:
        """Return the run of the sampler from the beginning of a stream, or an empty text after an error."""
        try:
            with self._sampler.stream_samples(1, seed=0) as stream:
                next(stream)
                beginning = stream._reader.resumption._beginning
                return "" if beginning is None else beginning.sampler_run
        except rollserve.RollserveError:
            return ""
