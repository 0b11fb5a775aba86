"""w8-many: the three agents of MPE's simple_spread with one policy, compared with a plain loop over PettingZoo."""

from __future__ import annotations

import contextlib
import time

import numpy as np

import rollserve
from benchmarks.service.agents import mlp_agent
from benchmarks.service.checks import check_log_probs
from benchmarks.service.processes.server import Service, running_service
from benchmarks.service.results import Options, Result, check, check_num_steps
from benchmarks.service.workloads.figures import cost_figures
from benchmarks.service.workloads.sampling import run_bare_loops
from benchmarks.shared.commands import Child

__all__ = ["AGENT", "SPREAD", "measure_many_agents"]

SPREAD = rollserve.EnvSpec("mpe/simple_spread-v3", {"max_cycles": 25}, num_rows=16, multi_agent="parallel")
AGENT = mlp_agent((18, 64, 64, 5), "categorical")
_NUM_STEPS = 20_000
_BARE_WARM_UP_DIVISOR = 4


def measure_many_agents(name: str, options: Options) -> list[Result]:
    """Measure calls for whole episodes in turns with plain loops, in as many processes as there are workers.

    Steps are environment steps, in each of which three agents act.

    Raises:
        CheckError: delivered data is wrong.
    """
    num_steps = options.scaled(_NUM_STEPS)
    settings = {
        "env": SPREAD.id,
        "num_rows": SPREAD.num_rows,
        "num_steps": num_steps,
        "num_workers": options.num_workers,
    }
    result = Result(name, f"{SPREAD.id}, MLP, {SPREAD.num_rows} rows, whole episodes", settings)
    with contextlib.ExitStack() as stack:
        module = "benchmarks.service.processes.bare_many"
        bare_loops = [stack.enter_context(Child(module, str(seed))) for seed in range(options.num_workers)]
        agent = rollserve.Policies({"main": AGENT})
        service = stack.enter_context(running_service(SPREAD, agent, options.num_workers))
        run_bare_loops(bare_loops, num_steps // _BARE_WARM_UP_DIVISOR)
        service.sampler.multi_agent.obtain_samples(num_steps)
        for _ in range(options.num_rounds):
            bare = run_bare_loops(bare_loops, num_steps)
            figures, result.checks = _call(service, num_steps)
            result.rounds.append(
                {**figures, **bare, "ratio_to_bare": figures["steps_per_second"] / bare["bare_steps_per_second"]}
            )
    return [result]


def _call(service: Service, num_steps: int) -> tuple[dict[str, float], list[str]]:
    """Return the figures of a call, and what was checked."""
    service.sampler.update_agent({"main": AGENT.parameters})  # as a trainer does; it discards what workers hold
    service.meter.start()
    began = time.perf_counter()
    batch = service.sampler.multi_agent.obtain_samples(num_steps)
    seconds, cost = time.perf_counter() - began, service.meter.stop()
    checks = [check_num_steps(batch.num_steps, num_steps, exact=False)]
    segments = batch.by_policy()["main"]
    checks.append(check_log_probs(segments, AGENT))
    check(batch.num_agent_steps == len(batch.agents) * batch.num_steps, "agents do not act in each step")
    check(np.array_equal(segments.lengths, np.repeat(batch.lengths, len(batch.agents))), "lives are not whole episodes")
    figures = {"seconds": seconds, "num_steps": float(batch.num_steps), "steps_per_second": batch.num_steps / seconds}
    return {**figures, **cost_figures(cost, batch.num_steps)}, [*checks, "all agents act in each step of each episode"]
