"""Work on a population."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from rollserve_server.activity import current_activity
from rollserve_server.agents import PolicyAgents
from rollserve_server.envs import ManyEnvs
from rollserve_server.errors import DomainError
from rollserve_server.sampling.collect.many import ManyPopulationCollector
from rollserve_server.sampling.collect.populations import RowPopulationCollector
from rollserve_server.sampling.protocol import Population, PopulationOrder, PopulationReport
from rollserve_server.sampling.work.bounds import run_slice

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from rollserve_server.agents import PopulationAgent
    from rollserve_server.envs import RowEnvs
    from rollserve_server.sampling.collect.populations import PopulationCollector
    from rollserve_server.sampling.protocol import Outcome

__all__ = ["PopulationWork"]


class PopulationWork:
    """Runs units of a population.

    Attributes:
        spec: the population.
        envs: environments that nothing else uses.
        collector: loop that runs the units.
    """

    def __init__(
        self,
        population: Population,
        envs: RowEnvs | ManyEnvs,
        agent: PopulationAgent | PolicyAgents,
        num_retries: int = 0,
    ) -> None:
        """Start without units; a unit whose environment failed may run again `num_retries` times."""
        self.spec = population
        self.envs = envs
        self.collector: PopulationCollector
        if isinstance(envs, ManyEnvs):
            assert isinstance(agent, PolicyAgents)  # noqa: S101  # the pool has checked that they fit
            self.collector = ManyPopulationCollector(population, envs, agent, num_retries)
        else:
            assert not isinstance(agent, PolicyAgents)  # noqa: S101
            self.collector = RowPopulationCollector(population, envs, agent, num_retries)

    def run(
        self, order: PopulationOrder, is_stopped: Callable[[], bool], is_urgent: Callable[[], bool]
    ) -> tuple[PopulationReport, NDArray[np.uint8]]:
        """Carry out an order. `is_stopped` ends it before a step, and `is_urgent` after one, by returning True."""
        collector = self.collector
        collector.enqueue(order.begin)
        began, steps_before = time.perf_counter(), collector.num_simulated_steps
        outcomes: list[Outcome] = []
        failure = None
        try:
            for ended in run_slice(collector, collector.begin, order.seconds, is_stopped, is_urgent):
                outcomes += ended
        except DomainError as error:
            failure = error.with_traceback(None)  # which has this frame, which has the error
        num_steps, seconds = collector.num_simulated_steps - steps_before, time.perf_counter() - began
        environment_seconds, policy_seconds = current_activity().split(seconds)
        env_failures, num_lost_steps = collector.attempts.take()
        report = PopulationReport(
            tuple(outcomes),
            num_steps,
            seconds,
            failure,
            env_failures,
            num_lost_steps,
            environment_seconds,
            policy_seconds,
        )
        return report, np.empty(0, np.uint8)  # it has no messages
