"""An action of an agent in all rows, with errors located in a row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollserve_server.activity import current_activity
from rollserve_server.errors import AgentFailedError, EpisodeFailedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np

    from rollserve_server.agents import Agent, Decision
    from rollserve_server.sampling.collect.inputs import MaskInput

__all__ = ["act"]


def act(
    agent: Agent,
    mask: MaskInput | None,
    observations: Sequence[np.ndarray],
    noise: np.ndarray,
    states: Sequence[np.ndarray],
    rows: Callable[[], Sequence[int]],
    located: Callable[[AgentFailedError], EpisodeFailedError],
) -> Decision:
    """Return the agent's actions and infos for M rows, and update its states; see `Agent.act`.

    Args:
        agent: the agent.
        mask: action masks of the rows; None if the agent has none.
        observations: for each leaf of the observation space (M, *O).
        noise: (M, K), random numbers of the rows' actions.
        states: for each of the agent's states (M, *S).
        rows: returns the rows in use; called only after an error. Errors in other rows are ignored.
        located: returns an error of a row with the episode that it was raised in.

    Raises:
        AgentFailedError: the agent raised an error, or its output or mask for a row in use is invalid. The error has
            the row.
    """
    if mask is not None:
        observations = [*observations, mask.column(observations)]
        _check(mask.failures, rows, located)
    activity = current_activity()
    activity.begin_step()
    try:
        decision = agent.act(observations, noise, states)
    except AgentFailedError as error:
        raise located(AgentFailedError(error.text, next(iter(rows()), 0))) from error
    activity.end()
    _check(agent.failures(), rows, located)
    return decision


def _check(
    failures: Mapping[int, str],
    rows: Callable[[], Sequence[int]],
    located: Callable[[AgentFailedError], EpisodeFailedError],
) -> None:
    """Raise the error of the first row in use that failed."""
    if failures:
        for row in rows():
            if row in failures:
                raise located(AgentFailedError(failures[row], row))
