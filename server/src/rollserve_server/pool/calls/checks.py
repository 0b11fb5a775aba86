"""Checks of a call's request against the pool as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollserve import Reason
from rollserve_server.errors import InvalidValueError, NotReadyError, OverLimitError, listed

if TYPE_CHECKING:
    from rollserve_server.pool.requests import Fragments, PopulationRequest, SamplingOptions, Target
    from rollserve_server.sampling import EnvDescription

__all__ = [
    "check_fragments",
    "check_num_outcomes",
    "check_num_steps",
    "check_num_workers",
    "check_population_request",
    "check_run",
]

_MAX_OUTCOMES = 1 << 17
"""Largest number of outcomes of agents in an evaluation, whose result then stays below the size that gRPC's clients
accept by default."""


def check_run(expected: str | None, run: str) -> None:
    """Raise NotReadyError if a request is about another run of the sampler than the present one."""
    if expected not in (None, run):
        got = f"{run!r}, in which the sampler is since it has started again"
        hint = "update the environment, then the agent, and call again"
        field, reason = "options.sampler_run", Reason.SAMPLER_RUN
        raise NotReadyError.of(field, expected=repr(expected), got=got, hint=hint, reason=reason)


def check_population_request(description: EnvDescription, request: PopulationRequest) -> None:
    """Raise InvalidValueError unless members are by policy where there are many agents, and skip no episode."""
    if request.options.skip_failed:
        expected = "false for a population, whose members all have the same number of episodes"
        raise InvalidValueError.of("options.skip_failed_episodes", expected=expected, got="true")
    agents = description.agents
    if agents and not request.policies:
        expected = f"none beside `policies`, because the environment has the agents {listed(agents)}"
        got, hint = f"{listed(request.parameters)} of no policy", "name the policies that members have parameters for"
        raise InvalidValueError.of("parameters", expected=expected, got=got, hint=hint)
    if request.policies and not agents:
        expected, got = "none in an environment with one agent", listed(request.policies)
        raise InvalidValueError.of("policies", expected=expected, got=got, hint="take `parameters`")


def check_num_outcomes(description: EnvDescription, num_episodes: int, num_members: int = 1) -> None:
    """Raise InvalidValueError if an evaluation, or one of a population, has more outcomes of agents than a result."""
    num_agents = len(description.agents)
    if num_agents * num_members * num_episodes > _MAX_OUTCOMES:
        of_members = "" if num_members == 1 else f" of each of {num_members} members"
        most = _MAX_OUTCOMES // (num_agents * num_members)
        expected = f"at most {most} episodes{of_members}, because each has {num_agents} agents"
        raise InvalidValueError.of("episode_count", expected=expected, got=num_episodes)


def check_num_steps(target: Target | Fragments, max_steps: int) -> None:
    """Raise OverLimitError if a request asks for more steps than calls may make; 0 for any number."""
    num_steps = getattr(target, "num_steps", 0)
    if max_steps and num_steps > max_steps:
        raise OverLimitError.of(
            "step_count",
            expected=f"at most {max_steps} steps of a call (--max-call-steps)",
            got=num_steps,
            hint="ask for fewer at a time",
            reason=Reason.CALL_TOO_LARGE,
        )


def check_num_workers(expected: int | None, num_workers: int) -> None:
    """Raise NotReadyError if a request expects another number of workers."""
    if expected not in (None, num_workers):
        field, reason = "options.worker_count", Reason.WORKER_COUNT
        raise NotReadyError.of(field, expected=expected, got=f"{num_workers} workers", reason=reason)


def check_fragments(target: Fragments, options: SamplingOptions, num_rows: int, max_episode_length: int | None) -> None:
    """Raise InvalidValueError unless a pool can deliver these fragments.

    Args:
        target: the fragments.
        options: the other options of the request.
        num_rows: number of rows of all workers.
        max_episode_length: limit of episodes, by the request or else by the server; None if there is none.
    """
    num_steps = target.num_steps
    if num_steps % num_rows:
        below = num_steps // num_rows * num_rows
        nearest = f"{below} or {below + num_rows}" if below else f"{num_rows}"
        expected = f"a multiple of {num_rows}, the number of rows of all workers, such as {nearest}"
        raise InvalidValueError.of("step_count", expected=expected, got=num_steps)
    if target.num_skipped_steps > num_steps:
        expected = f"at most {num_steps}, the number of all steps"
        raise InvalidValueError.of("fragments.skip_step_count", expected=expected, got=target.num_skipped_steps)
    if target.num_skipped_steps and target.fraction_of_workers < 1:
        expected = "none beside fragments.fraction_of_workers, with which no call can be repeated"
        raise InvalidValueError.of("fragments.skip_step_count", expected=expected, got=target.num_skipped_steps)
    if target.soft_horizon and max_episode_length is None:
        expected = "options.max_episode_length beside it, or a server with a limit"
        raise InvalidValueError.of("fragments.soft_horizon", expected=expected, got="neither")
    if options.skip_failed:
        expected = "false for fragments, whose rows go on from call to call"
        raise InvalidValueError.of("options.skip_failed_episodes", expected=expected, got="true")
    if target.row_step_count is not None and options.seed is None:
        raise InvalidValueError.of("fragments.row_step_count", expected="options.seed beside it", got="none")
