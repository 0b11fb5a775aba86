"""What a state of a row has beside its actions where there are many agents: recurrent states, and pending steps.

They travel as named arrays, as the recurrent state of a row with one agent does; the names are lists in JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rollserve_server.sampling.fragments.replay import DivergedError
from rollserve_server.sampling.record.lives import PendingStep

if TYPE_CHECKING:
    import numpy as np

    from rollserve_server.sampling.collect.running import RunningEpisode
    from rollserve_server.sampling.protocol.fragments import RecurrentState
    from rollserve_server.sampling.record.infos import InfoReader

__all__ = ["states_after", "states_before"]

_STATE, _STEP, _AFTER = "state", "step", "after"
"""First elements of the names: a recurrent state; a column of a pending step; a recurrent state after that step."""


def states_after(running: RunningEpisode, states: Mapping[int, RecurrentState]) -> RecurrentState:
    """Return what the state of a row has at the end of a fragment.

    Args:
        running: the row's episode.
        states: recurrent states of the agents that are alive.
    """
    return tuple((json.dumps(name), value) for name, value in _named(running, states))


def states_before(running: RunningEpisode, state: RecurrentState, infos: InfoReader) -> dict[int, RecurrentState]:
    """Give an episode whose actions were repeated its pending steps; return the agents' recurrent states.

    Raises:
        DivergedError: the state does not fit the episode.
    """
    try:
        named = [(json.loads(name), value) for name, value in state]
        found = {agent: _pending(agent, named, infos) for agent in running.alive}
    except (ValueError, TypeError, IndexError) as error:
        raise DivergedError from error
    for agent, life in running.alive.items():
        pending, segment = found[agent], life.segment
        unsettled = life.environment_steps.pop() if life.environment_steps else None
        if unsettled != (pending and pending.environment_step):
            raise DivergedError
        life.pending = pending
        segment.return_before, segment.discounted_before = segment.total_reward, life.discounted
    return {agent: tuple((name[2], value) for name, value in named if name[:2] == [_STATE, agent]) for agent in found}


def _named(running: RunningEpisode, states: Mapping[int, RecurrentState]) -> Iterator[tuple[list[Any], np.ndarray]]:
    for agent, life in running.alive.items():
        for name, value in states[agent]:
            yield [_STATE, agent, name], value
        if (pending := life.pending) is None:
            continue
        step = [pending.policy, pending.version, pending.environment_step]
        for (group, key), value in pending.columns.items():
            yield [_STEP, agent, group, key.name, *step], value
        for position, value in enumerate(pending.states):
            yield [_AFTER, agent, position == pending.reward_state], value


def _pending(agent: int, named: list[tuple[list[Any], np.ndarray]], infos: InfoReader) -> PendingStep | None:
    """Return the pending step of an agent, if it has one; raises what malformed names cause."""
    columns = [(name, value) for name, value in named if name[:2] == [_STEP, agent]]
    if not columns:
        return None
    policy, version, step = columns[0][0][4:]
    after = [(name[2], value) for name, value in named if name[:2] == [_AFTER, agent]]
    rewards = [position for position, (is_reward, _) in enumerate(after) if is_reward]
    return PendingStep(
        policy,
        version,
        step,
        {(name[2], infos.key(name[3], value.dtype, value.shape)): value for name, value in columns},
        [value for _, value in after],
        rewards[0] if rewards else None,
    )
