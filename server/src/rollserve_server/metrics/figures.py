"""Figures of a call, of its account: for metrics, and for the event in the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollserve_server.pool import Account

__all__ = ["call_seconds", "figures_of", "worker_seconds"]


def figures_of(account: Account) -> dict[str, float]:
    """Return what a call did, in numbers that can be added to those of other calls."""
    seconds = call_seconds(account) | worker_seconds(account)
    return {
        "steps": account.num_steps,
        "episodes": account.num_episodes,
        "bytes": account.message_bytes,
        "simulated_steps": account.num_simulated_steps,
        "retried_episodes": account.num_retried_episodes,
        **{f"{phase}_seconds": value for phase, value in seconds.items()},
    }


def call_seconds(account: Account) -> dict[str, float]:
    """Return the time of a call, by phase."""
    return {
        "queued": account.queued_seconds,
        "paused": account.paused_seconds,
        "waiting": max(account.waiting_seconds - account.paused_seconds, 0.0),
        "sending": account.sending_seconds,
    }


def worker_seconds(account: Account) -> dict[str, float]:
    """Return the time of all workers in a call, by phase."""
    sampling, environment, policy, encoding = (
        sum(getattr(worker, f"{phase}_seconds") for worker in account.workers)
        for phase in ("sampling", "environment", "policy", "encoding")
    )
    return {
        "environment": environment,
        "policy": policy,
        "recording": max(sampling - environment - policy, 0.0),
        "encoding": encoding,
        "idle": max(len(account.workers) * account.elapsed_seconds - sampling - encoding, 0.0),
    }
