"""w10: iterations of an on-policy trainer, compared with the plain loop in one process and in as many as workers."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import rollserve
from benchmarks.service.agents import mlp_agent
from benchmarks.service.checks import check_sample
from benchmarks.service.processes.server import TracedService, traced_service
from benchmarks.service.results import Options, Result, check_num_steps
from benchmarks.service.workloads.phases import call_phases, update_phases
from benchmarks.service.workloads.specs import ITERATIONS, SamplingSpec
from benchmarks.shared.commands import Child

__all__ = ["measure_iterations"]

_NUM_ITERATIONS = {512: 120, 2048: 60, 8192: 24}
"""Number of timed iterations in a round, by the number of steps."""
_NUM_TURNS = 4
"""Turns in which a round measures the service and both loops, because the speed of a machine changes."""
_SAMPLE_STEPS = 500


def measure_iterations(name: str, options: Options, num_steps: int | None = None) -> list[Result]:
    """Measure the iterations of a workload, in turns with the loops.

    Args:
        name: name of the workload.
        options: sizes of the measurement.
        num_steps: number of steps of the fragments to measure; None for all iterations.

    Raises:
        CheckError: delivered data is wrong.
    """
    specs = [
        spec
        for spec in ITERATIONS[name]
        if num_steps is None or (spec.call, spec.num_steps) == ("fragments", num_steps)
    ]
    env, agent, num_workers = specs[0].env, specs[0].agent, options.num_workers
    num_rows = specs[0].num_rows
    results = [_result(name, spec, options) for spec in specs]
    with contextlib.ExitStack() as stack:
        one, *several = (
            stack.enter_context(Child("benchmarks.service.processes.bare_loop", name, str(seed), str(count)))
            for seed, count in enumerate([num_rows * num_workers, *[num_rows] * num_workers])
        )
        service = stack.enter_context(traced_service(env, agent, num_workers))
        for _ in range(options.num_rounds):
            for spec, result in zip(specs, results, strict=True):
                measurement = _Measurement(spec, service, [one], several)
                for _ in range(_NUM_TURNS):
                    measurement.take_turn(max(options.scaled(_NUM_ITERATIONS[spec.num_steps]) // _NUM_TURNS, 1))
                result.rounds.append(measurement.figures())
                result.checks = measurement.check()
    return results


def _result(name: str, spec: SamplingSpec, options: Options) -> Result:
    settings = {**spec.settings, "num_workers": options.num_workers}
    settings["num_iterations"] = options.scaled(_NUM_ITERATIONS[spec.num_steps])
    return Result(f"{name}-{spec.num_steps}{'-episodes' if spec.call == 'samples' else ''}", spec.title, settings)


@dataclass
class _Measurement:
    """A round of one kind of iteration: answers, costs, events and times of all turns.

    Attributes:
        spec: environment, agent and call.
        service: the service.
        one: the loop in one process.
        several: the loops in as many processes as workers.
    """

    spec: SamplingSpec
    service: TracedService
    one: Sequence[Child]
    several: Sequence[Child]
    _answers: list[Mapping[str, Any]] = field(default_factory=list)
    _costs: list[Mapping[str, float]] = field(default_factory=list)
    _events: list[Mapping[str, Any]] = field(default_factory=list)
    _one_seconds: list[float] = field(default_factory=list)
    _several_seconds: list[float] = field(default_factory=list)

    def take_turn(self, num_iterations: int) -> None:
        """Measure some iterations of the service and of both loops, after one that warms up."""
        self._one_seconds += _iterate(self.one, self.spec.num_steps, num_iterations)
        self._several_seconds += _iterate(self.several, self.spec.num_steps, num_iterations)
        agent = self.spec.agent
        assert isinstance(agent, rollserve.MlpAgent)  # noqa: S101  # as all agents of iterations
        arguments = {"layer_sizes": agent.layer_sizes, "head": agent.head, "num_iterations": num_iterations + 1}
        self.service.meter.start()
        answer, events = self.service.traced("iterate", call=self.spec.call, num_steps=self.spec.num_steps, **arguments)
        self._costs.append(self.service.meter.stop())
        self._answers.append(answer)
        self._events += events

    def figures(self) -> dict[str, float]:
        """Return the figures of all turns."""
        iterations, updates, calls = (
            [moments for answer in self._answers for moments in answer[what][1:]]
            for what in ("iterations", "updates", "calls")
        )
        seconds = [iteration["ended"] - iteration["began"] for iteration in iterations]
        figures = {
            "steps_per_second": self.spec.num_steps / float(np.mean(seconds)),
            **_quantiles("iteration", seconds),
            **_quantiles("update", [update["ended"] - update["began"] for update in updates]),
            **_quantiles("call", [call["ended"] - call["began"] for call in calls]),
            **_quantiles("one_process", self._one_seconds),
            **_quantiles("processes", self._several_seconds),
            **update_phases(updates, self._events),
            **call_phases("call", calls, self._events),
            **call_phases("iteration", iterations, self._events),
            **_peaks(self._costs),
        }
        median = figures["iteration_p50_seconds"]
        figures["ratio_to_one_process"] = figures["one_process_p50_seconds"] / median
        figures["ratio_to_processes"] = figures["processes_p50_seconds"] / median
        figures["overhead_seconds"] = median - figures["processes_p50_seconds"]
        figures["call_overhead_seconds"] = figures["call_p50_seconds"] - figures["processes_p50_seconds"]
        return figures

    def check(self) -> list[str]:
        """Check the data of the last iteration; return what holds.

        Raises:
            CheckError: delivered data is wrong.
        """
        spec, answer = self.spec, self._answers[-1]
        agent = spec.agent
        assert isinstance(agent, rollserve.MlpAgent)  # noqa: S101  # as all agents of iterations
        last_agent = mlp_agent(agent.layer_sizes, agent.head, answer["last_seed"])
        sample = self.service.last_sample(min(spec.num_steps, _SAMPLE_STEPS))
        num_requested_steps = spec.num_steps * (len(answer["calls"]) + len(answer["iterations"]))
        return [
            "each call acts by the version of its update, or of the one before it",
            check_num_steps(answer["num_steps"], num_requested_steps, exact=spec.call == "fragments"),
            *check_sample(sample, dataclasses.replace(spec, agent=last_agent)),
        ]


def _iterate(loops: Sequence[Child], num_steps: int, num_iterations: int) -> list[float]:
    """Run loops at the same time, each with its share of the steps; return the seconds of the slowest by iteration."""
    for loop in loops:
        loop.send("iterate", num_steps=num_steps // len(loops), num_iterations=num_iterations + 1)
    seconds = [loop.receive()["seconds"] for loop in loops]
    return [max(each) for each in zip(*seconds, strict=True)][1:]


def _quantiles(what: str, seconds: Sequence[float]) -> dict[str, float]:
    p50, p90 = np.quantile(seconds, (0.5, 0.9))
    return {f"{what}_p50_seconds": float(p50), f"{what}_p90_seconds": float(p90)}


def _peaks(costs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: max(cost[name] for cost in costs) for name in costs[0] if name.endswith("_peak_bytes")}
