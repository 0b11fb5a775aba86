"""Reference results from a server without faults."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from faults.chaos.calls import members_of
from faults.chaos.catalogue import AGENTS, ENV_MODULE, ENVS, NUM_ROWS, agent, parameters
from faults.chaos.digests import step_digest
from faults.chaos.service import python_path
from faults.chaos.sessions import act, drive
from faults.chaos.story import Beginning, RecordedCall

import rollserve
from rollserve_server.local import local_server

__all__ = ["References", "running_references"]

_TIMEOUT = 300.0


class References:
    """A server with all agents and environments of the catalogue as versions."""

    def __init__(self, sampler: rollserve.Sampler) -> None:
        self._sampler = sampler
        self._envs: dict[str, int] = {}
        self._agents: dict[tuple[str, str], int] = {}
        self._num_workers = sampler.status().num_workers
        for family, names in AGENTS.items():
            for name, env in ENVS.items():
                if env.family == family:
                    self._envs[name] = sampler.update_env(env.reference).env_version
            for name in names:
                self._agents[family, name] = sampler.update_agent(agent(name))

    def episodes(self, call: RecordedCall, agent_name: str, env_name: str, number: int) -> rollserve.EpisodeBatch:
        """Repeat a call for `number` steps or episodes, with the recurrent state before each step."""
        request, beginning = call.request, call.beginning
        assert beginning is not None
        options = {**self._options(request["options"], beginning, agent_name, env_name), "return_states": True}
        if request["kind"] != "samples":  # results depend on the number of workers; a resize drops all rows
            self._resize(beginning.worker_count)
        match request["kind"]:
            case "samples":
                first = beginning.first_index
                return self._sampler.obtain_samples(number, first_episode_index=first, **options)
            case "exact":
                first = beginning.first_index
                return self._sampler.obtain_exact_episodes(number, first_episode_index=first, **options)
            case _:
                clock = beginning.row_step_count or None
                return self._sampler.obtain_fragments(number, row_step_count=clock, **options)

    def session(self, call: RecordedCall, env_name: str) -> tuple[list[str], list[rollserve.EpisodeBatch]]:
        """Repeat a session, as far as it came; returns the digests of its steps, and its batches."""
        assert call.beginning is not None
        self._resize(call.beginning.worker_count)
        request = dict(call.request)
        if call.outcome != "ok":
            request["number"] = max(len(call.steps) - 1, 0)
        steps, batches = [], []
        with drive(self._sampler, request, env_version=self._envs[env_name]) as session:
            for shown in act(session, request):
                if isinstance(shown, rollserve.DrivenStep):
                    steps.append(step_digest(shown))
                else:
                    batches.append(shown)
        return steps, batches

    def evaluation(
        self, call: RecordedCall, agent_name: str, env_name: str
    ) -> tuple[list[str], rollserve.EpisodeBatch | None]:
        """Repeat an evaluation; returns its returns and lengths, and its episodes if the call requested them."""
        request, beginning = call.request, call.beginning
        assert beginning is not None
        options = self._options(request["options"], beginning, agent_name, env_name)
        result: Any
        if request["kind"] == "population":
            members = members_of(parameters(agent_name) or {})
            result = self._sampler.evaluate_population(members, request["number"], **options)
        else:
            result = self._sampler.evaluate(request["number"], **request["extras"], **options)
        return [_hex(result.returns), _hex(result.lengths)], getattr(result, "episodes", None)

    def _resize(self, num_workers: int) -> None:
        if num_workers != self._num_workers:
            self._sampler.resize(num_workers)
            self._num_workers = num_workers

    def _options(
        self, options: Mapping[str, Any], beginning: Beginning, agent_name: str, env_name: str
    ) -> dict[str, Any]:
        return {
            **options,
            "seed": beginning.seed,
            "policy_version": self._agents[ENVS[env_name].family, agent_name],
            "env_version": self._envs[env_name],
        }


@contextlib.contextmanager
def running_references(folder: Path) -> Iterator[References]:
    """Run the server of references during the block."""
    options = (
        "--env",
        "CartPole-v1",
        "--workers",
        "2",
        "--rows",
        str(NUM_ROWS),
        "--backend",
        "in-process",
    )
    options += ("--allow-module", ENV_MODULE, "--keep-versions", "1000", "--max-calls", "64")
    with (
        local_server(*options, log=folder / "references.log", environment=python_path()) as server,
        rollserve.connect(server.address, timeout=_TIMEOUT) as sampler,
    ):
        yield References(sampler)


def _hex(array: np.ndarray) -> str:
    return array.tobytes().hex()
