"""w11: steps whose actions come from the client, compared with plain echoes and gymnasium's `AsyncVectorEnv`."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import rollserve
from benchmarks.service.checks import check_sample
from benchmarks.service.processes.server import Service, running_service
from benchmarks.service.results import Options, Result, check_num_steps
from benchmarks.service.workloads.figures import cost_figures, latency_figures
from benchmarks.service.workloads.specs import SamplingSpec
from benchmarks.shared.commands import Child

__all__ = ["DRIVING", "measure_driving"]

_PROCESSES = "benchmarks.service.processes"
_NUM_TURNS = 4
"""Turns in which a round measures all, because the speed of a machine changes."""
_NUM_RECORDED_STEPS = 40
"""Number of steps of each row that are compared with gymnasium's."""


@dataclass(frozen=True)
class _Driving:
    """Rows that are driven.

    Attributes:
        env: environment, with its vectorization and the rows of each worker.
        num_workers: number of workers.
        num_steps: number of timed steps.
        has_peer: whether `AsyncVectorEnv` has a process for each row.
    """

    env: rollserve.EnvSpec
    num_workers: int
    num_steps: int
    has_peer: bool

    @property
    def num_rows(self) -> int:
        """Number of rows of all workers."""
        assert self.env.num_rows is not None  # noqa: S101  # set in each workload below
        return self.env.num_rows * self.num_workers


def _native(num_rows: int) -> _Driving:
    env = rollserve.EnvSpec("CartPole-v1", vectorization="native", num_rows=num_rows)
    return _Driving(env, 1, 1000, has_peer=False)


def _rows(env_id: str, num_steps: int) -> _Driving:
    return _Driving(rollserve.EnvSpec(env_id, vectorization="rows", num_rows=4), 2, num_steps, has_peer=True)


DRIVING = {
    "w11-cartpole-64": _native(64),
    "w11-cartpole-512": _native(512),
    "w11-cheetah-8": _rows("HalfCheetah-v5", 1000),
    "w11-pong-8": _rows("ALE/Pong-v5", 400),
}
"""Sessions by workload. The number of workers is part of a workload."""


def measure_driving(name: str, options: Options) -> list[Result]:
    """Measure the steps of a session, without recording, in turns with what they are compared with.

    Raises:
        CheckError: a session showed or recorded wrong data.
    """
    spec, num_steps = DRIVING[name], max(options.scaled(DRIVING[name].num_steps) // _NUM_TURNS, 1)
    env, agent, num_rows = spec.env, rollserve.RandomAgent(), spec.num_rows
    rows = "native rows" if env.vectorization == "native" else "rows one by one"
    title = f"{env.id}, actions of the client, {num_rows} {rows}"
    settings = {"env": env.id, "num_rows": num_rows, "num_workers": spec.num_workers}
    settings["num_steps"] = _NUM_TURNS * num_steps
    result = Result(name, title, settings)
    with contextlib.ExitStack() as stack:
        plain = stack.enter_context(running_service(env, agent, spec.num_workers))
        secured = stack.enter_context(running_service(env, agent, spec.num_workers, encrypted=True, with_token=True))
        sizes = plain.client.ask("drive", num_steps=1)
        echo = stack.enter_context(Child(f"{_PROCESSES}.echo", str(sizes["num_received_bytes"])))
        message = {"address": f"127.0.0.1:{echo.ask('port')['port']}", "num_bytes": sizes["num_sent_bytes"]}
        peer = None
        if spec.has_peer:
            peer = stack.enter_context(Child(f"{_PROCESSES}.async_vector_env", env.id, str(num_rows)))
            peer.ask("drive", num_steps=num_steps // 5 + 1)
        for _ in range(options.num_rounds):
            measurement = _Measurement(num_rows, plain, secured, message, peer)
            for _ in range(_NUM_TURNS):
                measurement.take_turn(num_steps)
            result.rounds.append(measurement.figures())
        result.checks = ["all steps of all rows are in the account", *_check(plain, spec, title)]
    return [result]


@dataclass
class _Measurement:
    """A round: latencies and costs of all turns.

    Attributes:
        num_rows: number of rows of all workers.
        plain: service without TLS.
        secured: service with TLS that asks for tokens.
        message: address of the server of echoes, and number of bytes of a message to it.
        peer: process with `AsyncVectorEnv`, or None.
    """

    num_rows: int
    plain: Service
    secured: Service
    message: Mapping[str, Any]
    peer: Child | None
    _latencies: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    _costs: list[Mapping[str, float]] = field(default_factory=list)

    def take_turn(self, num_steps: int) -> None:
        """Measure some steps of each."""
        self._costs.append(self._drive("plain", self.plain, num_steps))
        self._drive("secured", self.secured, num_steps)
        self._latencies["echo"] += self.plain.client.ask("echo", **self.message, num_messages=num_steps)["latencies"]
        if self.peer is not None:
            self._latencies["async"] += self.peer.ask("drive", num_steps=num_steps)["latencies"]

    def figures(self) -> dict[str, float]:
        """Return the figures of all turns. Ratios compare medians: single steps can take very long."""
        measured = {name: latency_figures(latencies) for name, latencies in self._latencies.items()}
        plain = measured.pop("plain")
        figures = {**plain, "steps_per_second": plain["calls_per_second"] * self.num_rows}
        for name, other in measured.items():
            figures |= {f"{name}_{figure}": value for figure, value in other.items()}
        figures["ratio_to_echo"] = figures["echo_p50_seconds"] / plain["p50_seconds"]
        figures["secured_ratio_to_plain"] = plain["p50_seconds"] / figures["secured_p50_seconds"]
        if self.peer is not None:
            figures["ratio_to_async"] = figures["async_p50_seconds"] / plain["p50_seconds"]
        cost = {
            name: (sum if name.endswith("_cpu_seconds") else max)(each[name] for each in self._costs)
            for name in self._costs[0]
        }
        return {**figures, **cost_figures(cost, len(self._latencies["plain"]) * self.num_rows)}

    def _drive(self, name: str, service: Service, num_steps: int) -> Mapping[str, float]:
        """Measure a session; return its cost."""
        answer, cost = service.metered("drive", num_steps=num_steps)
        check_num_steps(answer["num_steps"], answer["num_made_steps"] * self.num_rows)
        self._latencies[name] += answer["latencies"]
        return cost


def _check(service: Service, spec: _Driving, title: str) -> list[str]:
    """Compare what a session records with gymnasium's environment; return what holds."""
    service.client.ask("record", num_steps=_NUM_RECORDED_STEPS)
    sample = service.last_sample(_NUM_RECORDED_STEPS * min(spec.num_rows, 16))
    kind: Any = "samples" if spec.has_peer else "fragments"
    return check_sample(sample, SamplingSpec(title, spec.env, rollserve.RandomAgent(), kind, _NUM_RECORDED_STEPS))
