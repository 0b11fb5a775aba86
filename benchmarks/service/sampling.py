"""W1, W2, W3: what a client gets of usual environments, beside the bare loop of the same."""

from __future__ import annotations

import contextlib

from benchmarks.service.bare import run_bare_loops
from benchmarks.service.checks import check_sample
from benchmarks.service.children import Child
from benchmarks.service.results import Options, Result, check
from benchmarks.service.running import Service, call_figures, running_service
from benchmarks.service.workloads import SAMPLING, SamplingWorkload

__all__ = ["measure_sampling"]

_WARM_UP_PART = 4
_SAMPLE_STEPS = 3000


def measure_sampling(name: str, options: Options) -> list[Result]:
    """Measures one of these workloads, in turns with its bare loop in as many processes as there are workers.

    Raises:
        CheckError: what came is not what it should be.
    """
    workload = SAMPLING[name]
    num_rows = workload.num_rows * options.num_workers
    num_steps = options.scaled(workload.num_steps, num_rows)
    warm_up_steps = max(num_steps // _WARM_UP_PART // num_rows, 1) * num_rows
    settings = {**workload.settings, "num_steps": num_steps, "num_workers": options.num_workers}
    result = Result(name, workload.title, settings)
    with contextlib.ExitStack() as stack:
        loops = [
            stack.enter_context(Child("benchmarks.service.bare", name, str(seed)))
            for seed in range(options.num_workers)
        ]
        service = stack.enter_context(running_service(workload.env, workload.agent, options.num_workers))
        run_bare_loops(loops, warm_up_steps)
        service.client.ask("obtain", call=workload.call, num_steps=warm_up_steps, **workload.options)
        for _ in range(options.num_rounds):
            bare = run_bare_loops(loops, num_steps)
            figures, found = _round(service, workload, num_steps)
            ratio = figures["steps_per_second"] / bare["bare_steps_per_second"]
            result.rounds.append({**figures, **bare, "ratio_to_bare": ratio})
            result.checks = found
    return [result]


def _round(service: Service, workload: SamplingWorkload, num_steps: int) -> tuple[dict[str, float], list[str]]:
    """The figures of one call for a whole batch and of one message by message, and what was found to hold."""
    # As a trainer does. What was sampled ahead with the version before is of no use to the next call.
    service.sampler.update_agent(workload.agent)
    answer, cost = service.metered("obtain", call=workload.call, num_steps=num_steps, **workload.options)
    exact = workload.call == "fragments"
    enough = answer["num_steps"] == num_steps if exact else answer["num_steps"] >= num_steps
    check(enough, f"{answer['num_steps']} steps came, {num_steps} were asked for")
    sample, _ = service.last_sample(_SAMPLE_STEPS)
    found = check_sample(sample, workload)
    service.sampler.update_agent(workload.agent)
    streamed = service.client.ask("stream", call=workload.call, num_steps=num_steps, **workload.options)
    figures = call_figures(answer, cost)
    figures["simulated_steps_per_step"] = answer["num_simulated_steps"] / answer["num_steps"]
    figures["first_message_seconds"] = streamed["first_message_seconds"]
    figures["wire_bytes_per_byte"] = streamed["num_wire_bytes"] / streamed["num_bytes"]
    figures["client_growth_per_result_byte"] = figures["client_growth_bytes"] / answer["num_bytes"]
    number = "exactly as many steps as were asked for" if exact else "at least as many steps as were asked for"
    return figures, [number, *found]
