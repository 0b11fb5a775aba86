"""w1, w2, w3: usual environments sampled by a client, compared with the bare loop of the same environment."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from benchmarks.service.checks import check_sample
from benchmarks.service.processes.server import Service, running_service
from benchmarks.service.results import Options, Result, check_num_steps
from benchmarks.service.workloads.figures import call_figures
from benchmarks.service.workloads.specs import SAMPLING, SamplingSpec
from benchmarks.shared.commands import Child

__all__ = ["measure_sampling", "run_bare_loops"]

_SAMPLE_STEPS = 3000
_BARE_WARM_UP_DIVISOR = 4


def measure_sampling(name: str, options: Options) -> list[Result]:
    """Measure a workload in turns with its bare loop, which runs in as many processes as there are workers.

    Raises:
        CheckError: delivered data is wrong.
    """
    spec = SAMPLING[name]
    num_rows = spec.num_rows * options.num_workers
    num_steps = options.scaled(spec.num_steps, num_rows)
    settings = {**spec.settings, "num_steps": num_steps, "num_workers": options.num_workers}
    result = Result(name, spec.title, settings)
    with contextlib.ExitStack() as stack:
        bare_loops = [
            stack.enter_context(Child("benchmarks.service.processes.bare_loop", name, str(seed), str(spec.num_rows)))
            for seed in range(options.num_workers)
        ]
        service = stack.enter_context(running_service(spec.env, spec.agent, options.num_workers))
        run_bare_loops(bare_loops, num_steps // _BARE_WARM_UP_DIVISOR)
        service.client.ask("obtain", call=spec.call, num_steps=num_steps, **spec.options)
        for _ in range(options.num_rounds):
            bare = run_bare_loops(bare_loops, num_steps)
            figures, result.checks = _run_calls(service, spec, num_steps)
            ratio = figures["steps_per_second"] / bare["bare_steps_per_second"]
            result.rounds.append({**figures, **bare, "ratio_to_bare": ratio})
    return [result]


def run_bare_loops(bare_loops: Sequence[Child], num_steps: int) -> dict[str, float]:
    """Run all bare loops at the same time, for `num_steps` steps in all; return their rate and CPU time."""
    for bare_loop in bare_loops:
        bare_loop.send("run", num_steps=num_steps // len(bare_loops))
    answers = [bare_loop.receive() for bare_loop in bare_loops]
    num_made_steps = sum(answer["num_steps"] for answer in answers)
    cpu_seconds = sum(answer["cpu_seconds"] for answer in answers)
    return {
        "bare_steps_per_second": num_made_steps / max(answer["seconds"] for answer in answers),
        "bare_cpu_seconds_per_million_steps": cpu_seconds / num_made_steps * 1e6,
    }


def _run_calls(service: Service, spec: SamplingSpec, num_steps: int) -> tuple[dict[str, float], list[str]]:
    """Return the figures of one call for a whole batch and of one message by message, and what was checked."""
    call = {"call": spec.call, "num_steps": num_steps, **spec.options}
    # As a trainer does. Each update also discards what the workers hold of the previous call.
    service.sampler.update_agent(spec.agent)
    answer, cost = service.metered("obtain", **call)
    count_check = check_num_steps(answer["num_steps"], num_steps, exact=spec.call == "fragments")
    sample_checks = check_sample(service.last_sample(_SAMPLE_STEPS), spec)
    service.sampler.update_agent(spec.agent)
    streamed = service.client.ask("stream", **call)
    figures = call_figures(answer, cost)
    figures["simulated_steps_per_step"] = answer["num_simulated_steps"] / answer["num_steps"]
    figures["first_message_seconds"] = streamed["first_message_seconds"]
    figures["wire_bytes_per_byte"] = streamed["num_wire_bytes"] / streamed["num_bytes"]
    figures["client_growth_per_result_byte"] = figures["client_growth_bytes"] / answer["num_bytes"]
    return figures, [count_check, *sample_checks]
