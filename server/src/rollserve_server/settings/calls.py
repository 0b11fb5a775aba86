"""Calls: how many run at a time, how much they hold, and how often lost work runs again."""

from __future__ import annotations

from pydantic import Field

from rollserve_server.settings.groups import Group

__all__ = ["MAX_EVALUATIONS", "CallSettings"]

MAX_EVALUATIONS = 2
"""Evaluations that run at a time; as many again may be stalled. Each has environments of its own on every worker, and a
second one lets a call proceed while another goes wrong."""


class CallSettings(Group):
    """How calls share the workers, and when they give up."""

    max_calls: int = Field(
        default=4,
        ge=1,
        le=64,
        description="Number of calls that sample at the same time; the others queue. Each has environments of its own.",
    )
    max_stalled_calls: int = Field(
        default=4,
        ge=0,
        le=64,
        description="Number of further calls that are paused, or whose clients may be stalled, which means that they "
        "do not read what is ready. A stalled call does not count as running while others queue. When one more is "
        "needed, the call that has stalled longest is ended.",
    )
    max_waiting_calls: int = Field(
        default=64, ge=0, le=100_000, description="Number of calls that may queue; further ones are refused."
    )
    call_window_bytes: int = Field(
        default=64 << 20,
        ge=1,
        description="Bytes of a call's result that may be on their way from the workers to the client.",
    )
    gateway_buffer_bytes: int = Field(
        default=1 << 30,
        ge=1,
        description="Bytes of all calls' results together that may be on their way from the workers to clients; each "
        "call has at most an equal share.",
    )
    unit_retries: int = Field(
        default=3,
        ge=0,
        le=1000,
        description="How often an episode, or a block, runs again beside others because its worker was lost. After "
        "that it runs alone on a worker, and the call fails if two more workers are lost with it. Also how often it "
        "runs again because it hung, before the call fails.",
    )
    straggler_factor: float = Field(
        default=3.0,
        ge=0,
        description="An episode that takes this many times as long as most others, and at least a second, is begun a "
        "second time on a worker that would be idle; the first run to finish counts, and both are equal. Only where "
        "any worker may run any episode. With 0, calls wait however long it takes.",
    )
    max_unended_steps: int = Field(
        default=1_000_000,
        ge=0,
        description="Number of steps that the rows of a call may make since one of its episodes last ended, before "
        "the call fails; or 3 % of that for each row, 100 times the steps that the call asks for, or twice the "
        "environment's own limit for each row, whichever is most. Only without max_episode_length. With 0, calls go on "
        "for ever.",
    )
    turn_steps: int = Field(
        default=50_000,
        ge=1,
        description="Number of steps that a call makes before it may have to pause for a queued call of a connection "
        "with one running call less. For a connection with two or more less, it pauses at once.",
    )
    max_call_steps: int = Field(
        default=0,
        ge=0,
        description="Number of steps that a call may ask for, or make for the episodes that it asks for. With 0, any "
        "number.",
    )
    max_call_seconds: float = Field(
        default=0.0,
        ge=0,
        le=1e9,
        description="How long a call may run, without the time that it queues or pauses or its client takes to read; "
        "then it is ended, and its client can ask for the rest in a call that queues again. With 0, for ever.",
    )
    progress_seconds: float = 2.0
    """How often a call that delivers nothing reports progress."""

    @property
    def window_bytes(self) -> int:
        """Bytes of one call that may be on their way, so that all calls together keep to `gateway_buffer_bytes`."""
        max_calls = self.max_calls + self.max_stalled_calls + 2 * MAX_EVALUATIONS
        return max(min(self.call_window_bytes, self.gateway_buffer_bytes // max_calls), 1)
