"""An agent's step, with what goes wrong in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollserve_server.activity import Phase, current_activity
from rollserve_server.errors import AgentFailedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np

    from rollserve_server.agents import Agent

__all__ = ["act"]


def act(
    agent: Agent,
    observations: Sequence[np.ndarray],
    noise: np.ndarray,
    states: Sequence[np.ndarray],
    rows: Callable[[], Sequence[int]],
) -> tuple[Sequence[np.ndarray], Mapping[str, np.ndarray]]:
    """`Agent.act`.

    Args:
        agent: what acts.
        observations: see there.
        noise: see there.
        states: see there.
        rows: those that count; asked only when something went wrong. What happens in others does not matter.

    Raises:
        AgentFailedError: the agent failed, or what it gave for one of the rows is of no use. It has a row.
    """
    activity = current_activity()
    activity.begin(Phase.ACTION)
    try:
        actions, infos = agent.act(observations, noise, states)
    except AgentFailedError as error:
        raise AgentFailedError(error.text, next(iter(rows()), 0)) from error
    activity.phase = Phase.WORKING
    failures = agent.failures()
    if failures:
        for row in rows():
            if row in failures:
                raise AgentFailedError(failures[row], row)
    return actions, infos
