"""Environments of EnvPool in which several players act, all in each step or one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve_server.envs.envpool import check_actions, find_envpool
from rollserve_server.envs.making import call_with_arguments
from rollserve_server.envs.many.turns import AgentTurn, TurnEnv
from rollserve_server.envs.outcomes import ReturnedError
from rollserve_server.errors import InvalidValueError
from rollserve_wire.errors import mismatch

if TYPE_CHECKING:
    from rollserve_wire.environments import EnvSpec

__all__ = ["EnvPoolPlayers"]

_CURRENT = "current_player"
"""Info of environments whose players act one after the other: the player who acts next."""

_POOL_INFOS = ("elapsed_step", "env_id", "players", "reward", "terminated")
"""Infos of the pool, and infos that repeat the result of a step."""


class EnvPoolPlayers(TurnEnv):
    """An environment of EnvPool with P players, named `player_0` and so on, who have the same spaces.

    Where players act one after the other, a step here is the action of the current one, and the rewards of the others
    add up until their turn. EnvPool wants as many actions as there are players, and takes the first one for the current
    player. Each reset makes a new pool, because EnvPool takes seeds only then.
    """

    def __init__(self, spec: EnvSpec) -> None:
        """Find the environment, and learn its spaces.

        Raises:
            NotFoundError: as of `make_envpool`.
            InvalidValueError: as of `make_envpool`; also an environment with one player, or whose players act in the
                other way than `multi_agent` says.
        """
        self._found, self._id = find_envpool(spec), spec.id
        num_players = self._found.num_players
        if num_players < 2:
            raise InvalidValueError.of("id", expected="an environment with several players", got=repr(spec.id))
        self._in_turn = f"info:{_CURRENT}" in self._found.spec.state_array_spec
        api = "aec" if self._in_turn else "parallel"
        if spec.multi_agent != api:
            how = "one after the other" if self._in_turn else "in each step"
            expected = f"{api!r}, because the players of {spec.id!r} act {how}"
            raise InvalidValueError.of("multi_agent", expected=expected, got=repr(spec.multi_agent))
        pool = call_with_arguments(spec, lambda: self._make_pool(0))
        self.agents = tuple(f"player_{number}" for number in range(num_players))
        self.observation_spaces = (pool.observation_space,) * num_players
        self.action_spaces = (pool.action_space,) * num_players
        self.max_acting = 1 if self._in_turn else num_players
        self.state_space = None
        self._pool: Any = None
        self._acting: tuple[int, ...] = ()
        self._last: list[AgentTurn] = []

    def reset(self, seed: int, options: dict[str, Any] | None) -> Sequence[AgentTurn]:
        """Begin an episode, and return the turns of the players who act first."""
        self._pool = None  # a pool releases its thread and memory only when nothing refers to it
        self._pool = self._make_pool(seed)
        observations, infos = self._pool.reset()
        nothing = np.zeros(len(self.agents))
        return self._turns(observations, nothing, (False, False), infos, nothing)

    def step(self, actions: Mapping[int, Any]) -> Sequence[AgentTurn]:
        """Make a step with the actions of the players who act, and return the next turns."""
        for action in actions.values():
            check_actions(action, self.action_spaces[0])
        any_action = next(iter(actions.values()))  # of the current player, where one acts
        columns = np.stack([np.asarray(actions.get(player, any_action)) for player in range(len(self.agents))])
        pending = np.array([turn.reward for turn in self._last])
        pending[list(self._acting)] = 0.0
        observations, rewards, terminated, truncated, infos = self._pool.step(
            columns.astype(self._pool.action_space.dtype)
        )
        return self._turns(observations, rewards, (bool(terminated[0]), bool(truncated[0])), infos, pending)

    def cut(self) -> Sequence[AgentTurn]:
        """Return the turns of the players who wait for theirs."""
        waiting = [turn for turn in self._last if turn.agent not in self._acting]
        self._last = [turn._replace(reward=0.0) for turn in self._last]
        return waiting

    def state(self) -> Any:
        """Raise NotImplementedError: there is no global state."""
        raise NotImplementedError

    def close(self) -> None:
        """Release the pool."""
        self._pool = None

    def _make_pool(self, seed: int) -> Any:
        """Make a pool with one row and one thread."""
        registry, arguments = self._found.registry, self._found.arguments
        return registry.make_gymnasium(self._id, num_envs=1, num_threads=1, seed=[seed], **arguments)

    def _turns(
        self,
        observations: Any,
        rewards: np.ndarray,
        flags: tuple[bool, bool],
        infos: Mapping[str, Any],
        pending: np.ndarray,
    ) -> list[AgentTurn]:
        """Return the turns of the players who act next, or of all at the end."""
        num_players = len(self.agents)
        if len(infos["players"]["env_id"]) != num_players:
            got = f"{len(infos['players']['env_id'])} of {self._id}"
            raise ReturnedError(f"players: {mismatch(f'{num_players} players in each step', got)}")
        common = {name: column[0] for name, column in infos.items() if name not in _POOL_INFOS}
        own = {name: column for name, column in infos["players"].items() if name not in ("env_id", "id")}
        self._last = [
            AgentTurn(
                player,
                _part(observations, player),
                float(pending[player] + rewards[player]),
                *flags,
                {**common, **{name: column[player] for name, column in own.items()}},
            )
            for player in range(num_players)
        ]
        self._acting = (int(infos[_CURRENT][0]),) if self._in_turn else tuple(range(num_players))
        return self._last if any(flags) else [self._last[player] for player in self._acting]


def _part(observations: Any, player: int) -> Any:
    """Return a player's observation, given the observations of all players."""
    if isinstance(observations, Mapping):
        return {name: _part(column, player) for name, column in observations.items()}
    return observations[player]
