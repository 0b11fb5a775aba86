"""Lives of agents in environments with many agents: their steps, recorded side by side, each at its own step."""

from __future__ import annotations

import sys
import time
from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve_server.sampling.record.columns import MIN_BUFFER_STEPS, ColumnBuffer, Piece, bytes_of
from rollserve_server.sampling.record.infos import NO_RESET_INFOS, InfoRecorder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from rollserve_server.sampling.record.columns import ColumnKey
    from rollserve_server.sampling.record.episodes import Episode
    from rollserve_server.sampling.record.infos import InfoReader, ResetInfos

__all__ = ["Life", "LifeRecorder", "ManyEpisode", "PendingStep", "finish_step"]

_MAX_STEPS = 128
"""Steps of a life that are recorded before they move to a buffer of their own."""

_BEFORE = ("observations", "states")
"""Groups of columns that are known before a step."""

_LIFE_BYTES = 1024
"""Memory of a life's objects without steps, infos and last observations, about; and of an episode without lives."""


@dataclass(eq=False, slots=True)
class Life:
    """A life of an agent, from its first observation in an episode to its end; of fragments, a part of one.

    Attributes:
        agent: position of the agent among the environment's possible agents.
        number: number of the life among the agent's lives in the episode.
        policy: position of the acting policy among all that may act.
        segment: the life's steps, as an episode whose sums begin with the rewards before the first step.
        reset: the environment's infos that came with the life's first observation.
        environment_steps: the environment step of the episode in which each step was made, from 0.
        discounted: discounted return after the last step; 0 before the first one, and without a discount.
        infos: recorder of the environment's infos; None before the first ones.
        pending: of fragments, a step of an earlier one whose reward is not known yet.
    """

    agent: int
    number: int
    policy: int
    segment: Episode
    reset: ResetInfos = NO_RESET_INFOS
    environment_steps: array[int] = field(default_factory=lambda: array("I"))
    discounted: float = 0.0
    infos: InfoRecorder | None = None
    pending: PendingStep | None = None

    @property
    def reward_before(self) -> float:
        """Sum of the rewards before the first step; 0 for a part that begins with a later one."""
        return 0.0 if self.segment.first_step else self.segment.return_before

    def add_before(self, reward: float) -> None:
        """Add a reward that comes before the first step."""
        self.segment.return_before += reward
        self.segment.total_reward = self.segment.return_before

    @property
    def steps(self) -> NDArray[np.uint32]:
        """The environment steps, (length,)."""
        return np.frombuffer(self.environment_steps, np.uint32)


@dataclass(frozen=True, eq=False)
class PendingStep:
    """A step whose fragment has ended before its reward was known: it belongs to the fragment in which that arrives.

    Attributes:
        policy: name of the policy that acted.
        version: version of the policy.
        environment_step: the environment step of the episode in which it was made.
        columns: the values (*shape) of all columns but the reward.
        states: each of the policy's recurrent states after the step.
        reward_state: position of the state that is the reward; None if there is none.
    """

    policy: str
    version: int
    environment_step: int
    columns: Mapping[ColumnKey, np.ndarray]
    states: Sequence[np.ndarray] = ()
    reward_state: int | None = None


@dataclass(eq=False, slots=True)
class ManyEpisode:
    """An episode of an environment with many agents, finished or not; or a fragment of one.

    Attributes:
        index: index of the episode in its sequence.
        env_seed: seed of the environment's reset.
        row: row that ran it, within its worker.
        began: when it began (`time.perf_counter`).
        length: number of environment steps.
        first_step: number of environment steps that a fragment's episode has before it; 0 for whole episodes.
        lives: lives with at least one step; once it is finished, by agent and time.
        dropped_infos: number of values of infos that have no place in a column, by name; of all lives.
        total_reward: sum of the rewards of all agents, of earlier fragments, too; 0 until it is finished.
        ended: whether the episode has ended, with the last of these steps.
        terminated_at, truncated_at: number of environment steps of the episode after which an agent was last
            terminated, or truncated; 0 before.
        seconds: time from its beginning to its last step; 0 until it is finished.
        num_bytes: approximate memory of the episode; 0 until it is finished.
        global_states: global state (*S) before each environment step, and after the last one; None if it is not
            recorded.
    """

    index: int
    env_seed: int
    row: int
    began: float
    length: int = 0
    first_step: int = 0
    lives: list[Life] = field(default_factory=list)
    dropped_infos: Counter[str] = field(default_factory=Counter)
    total_reward: float = 0.0
    ended: bool = False
    terminated_at: int = 0
    truncated_at: int = 0
    seconds: float = 0.0
    num_bytes: int = 0
    global_states: list[np.ndarray] | None = None

    @property
    def num_agent_steps(self) -> int:
        """Number of the steps of all agents."""
        return sum(life.segment.length for life in self.lives)

    @property
    def terminated(self) -> bool:
        """Whether the episode has ended, and an agent was terminated by the last step."""
        return self.ended and self.terminated_at == self.stop

    @property
    def truncated(self) -> bool:
        """Whether the episode has ended, and an agent was truncated by the last step."""
        return self.ended and self.truncated_at == self.stop

    @property
    def stop(self) -> int:
        """Number of environment steps of the episode so far."""
        return self.first_step + self.length

    @property
    def column_bytes(self) -> int:
        """Bytes of the steps in column buffers."""
        return sum(life.segment.column_bytes for life in self.lives)

    def places(self, life: Life) -> NDArray[np.int64]:
        """Return where the steps of a life are among the environment steps; those made before count as the first."""
        return np.maximum(life.steps.astype(np.int64) - self.first_step, 0)

    def finish(self) -> None:
        """Order the lives, and count what they take and lack, after the last step."""
        self.seconds = time.perf_counter() - self.began
        self.lives.sort(key=lambda life: (life.agent, life.environment_steps[0]))
        _drop_mixed_shapes(self.lives)
        for life in self.lives:
            self.dropped_infos.update(life.segment.dropped_infos)
            self.num_bytes += life.segment.num_bytes
        self.num_bytes += _LIFE_BYTES + sum(state.nbytes for state in self.global_states or ())


class LifeRecorder:
    """Records the steps of agents of one policy in L lanes, each at its own step, and cuts lives out of them.

    Attributes:
        keys: keys of the columns that every step has.
        step_bytes: bytes that the columns of a step take.
    """

    def __init__(
        self,
        num_lanes: int,
        keys: Iterable[ColumnKey],
        reader: InfoReader,
        buffer_bytes: int,
        keep: Callable[[ColumnBuffer, int], object] = lambda buffer, num_steps: None,
    ) -> None:
        """Allocate the columns.

        Args:
            num_lanes: L.
            keys: columns that every step has.
            reader: reads the infos of steps.
            buffer_bytes: upper bound for the size of the columns, if a few steps fit into it.
            keep: called with each buffer that steps move to, and the number of its steps.
        """
        self.keys = tuple(keys)
        self._reader, self._keep = reader, keep
        self.step_bytes = bytes_of(self.keys)
        self._room = max(MIN_BUFFER_STEPS, min(buffer_bytes // max(self.step_bytes * num_lanes, 1), _MAX_STEPS))
        self._columns = {
            (group, key): np.empty((num_lanes, self._room, *key.shape), key.dtype) for group, key in self.keys
        }
        self._groups: dict[str, list[np.ndarray]] = {}
        for (group, _), column in self._columns.items():
            self._groups.setdefault(group, []).append(column)
        (self._rewards,) = self._groups["rewards"]
        self._positions = np.zeros(num_lanes, np.int64)
        # Whether the reward of the current step is written, and so what followed the step is known.
        self._settled = np.ones(num_lanes, np.bool_)
        self._lives: dict[int, Life] = {}

    def begin(self, lane: int, life: Life) -> None:
        """Record the lane's next steps as steps of a life."""
        self._lives[lane] = life
        self._positions[lane] = 0
        self._settled[lane] = True

    def advance(self, lanes: NDArray[np.int64]) -> None:
        """Begin the next step of some lanes."""
        for lane in lanes[self._positions[lanes] == self._room].tolist():
            self._lives[lane].segment.pieces.append(self._moved(lane))
        self._positions[lanes] += 1
        self._settled[lanes] = False

    def write(self, group: str, lanes: NDArray[np.int64], values: Iterable[np.ndarray]) -> None:
        """Write the current step of some lanes, (lanes, *shape) for each column of the group."""
        positions = self._positions[lanes] - 1
        for column, value in zip(self._groups.get(group, ()), values, strict=True):
            column[lanes, positions] = value

    def write_reward(self, lane: int, reward: float) -> None:
        """Write the reward of the current step of a lane."""
        self._rewards[lane, self._positions[lane] - 1] = reward
        self._settled[lane] = True
        self._lives[lane].segment.total_reward += reward

    def write_infos(self, lane: int, info: Mapping[Any, Any]) -> None:
        """Write an environment's infos of the current step of a lane."""
        life = self._lives[lane]
        if life.infos is None:
            life.infos = InfoRecorder(self._reader, life.segment.dropped_infos)
        life.infos.write(len(life.environment_steps) - 1, info)

    def is_settled(self, lane: int) -> bool:
        """Return whether the reward of the lane's current step is written, if it has made any."""
        return bool(self._settled[lane])

    def undo(self, lane: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Forget the lane's current step; return the observation and the recurrent states before it."""
        position = self._positions[lane] - 1
        self._positions[lane] = position
        self._lives[lane].environment_steps.pop()
        before = [[column[lane, position].copy() for column in self._groups.get(group, ())] for group in _BEFORE]
        return before[0], before[1]

    def current(self, lane: int) -> dict[ColumnKey, np.ndarray]:
        """Return a copy of the values (*shape) of the lane's current step, without its reward."""
        position = self._positions[lane] - 1
        return {key: np.array(column[lane, position]) for key, column in self._columns.items() if key[0] != "rewards"}

    def finish(
        self, lane: int, last_observations: Sequence[np.ndarray], last_states: Sequence[np.ndarray] = ()
    ) -> Life:
        """End the lane's life, which has at least one step, with the current step, and return it."""
        life = self._lives.pop(lane)
        segment = life.segment
        segment.length = len(life.environment_steps)
        if self._positions[lane]:  # else its last steps have moved, and a later one was forgotten
            segment.pieces.append(self._moved(lane))
        segment.last_observations, segment.last_states = last_observations, last_states
        if life.infos is not None:
            segment.env_infos = life.infos.finish(segment.length)
        _count_bytes(life, self.step_bytes)
        return life

    def abandon(self, lane: int) -> None:
        """Forget the lane's life, if it runs one."""
        self._lives.pop(lane, None)

    def _moved(self, lane: int) -> Piece:
        """Return the lane's steps as a piece of a buffer of their own, and make room for others."""
        stop = int(self._positions[lane])
        self._positions[lane] = 0
        copies = {key: column[lane : lane + 1, :stop].copy() for key, column in self._columns.items()}
        buffer = ColumnBuffer(copies)  # type: ignore[arg-type]  # a dict of arrays is one of columns
        self._keep(buffer, stop)
        return Piece(buffer, 0, 0, stop)


def finish_step(life: Life, reward: float, info: Mapping[Any, Any], reader: InfoReader) -> None:
    """Make a life without steps one that has its pending step only, given what followed it.

    Args:
        life: the life.
        reward: reward of the step.
        info: the environment's infos of the step.
        reader: reads the infos.
    """
    pending, segment = life.pending, life.segment
    assert pending is not None  # noqa: S101  # the caller knows
    columns = {key: value[np.newaxis, np.newaxis] for key, value in pending.columns.items()}
    columns["rewards", reader.key("", np.dtype(np.float64), ())] = np.full((1, 1), reward)
    segment.pieces.append(Piece(ColumnBuffer(columns), 0, 0, 1))  # type: ignore[arg-type]  # as in `_moved`
    segment.length = 1
    segment.total_reward += reward
    segment.last_states = [np.array(state) for state in pending.states]
    if pending.reward_state is not None:
        segment.last_states[pending.reward_state][...] = reward
    life.environment_steps.append(pending.environment_step)
    if info:
        recorder = InfoRecorder(reader, segment.dropped_infos)
        recorder.write(0, info)
        segment.env_infos = recorder.finish(1)
    _count_bytes(life, bytes_of(columns))


def _count_bytes(life: Life, step_bytes: int) -> None:
    """Count the bytes of a life whose steps are all there."""
    segment = life.segment
    segment.column_bytes = segment.length * step_bytes
    arrays = (*segment.last_observations, *segment.last_states, *segment.reset_infos.values())
    segment.num_bytes = segment.column_bytes + _LIFE_BYTES + 4 * segment.length
    segment.num_bytes += sum(map(sys.getsizeof, arrays))
    segment.num_bytes += sum(column.num_bytes for column in segment.env_infos.values())


def _drop_mixed_shapes(lives: Sequence[Life]) -> None:
    """Drop and count the infos of an episode whose values differ in shape between lives with the same policy."""
    shapes: dict[tuple[int, bool, str], set[tuple[int, ...]]] = {}
    for life in lives:
        for is_reset, keys in enumerate((life.segment.env_infos, life.segment.reset_infos)):
            for key in keys:
                shapes.setdefault((life.policy, bool(is_reset), key.name), set()).add(key.shape)
    mixed = {name for name, found in shapes.items() if len(found) > 1}
    for life in lives if mixed else ():
        segment, policy = life.segment, life.policy
        for key, column in segment.env_infos.items():
            if (policy, False, key.name) in mixed:
                segment.dropped_infos[key.name] += len(column.steps)
        segment.env_infos = {k: v for k, v in segment.env_infos.items() if (policy, False, k.name) not in mixed}
        for key in segment.reset_infos:
            segment.dropped_infos[key.name] += (policy, True, key.name) in mixed
        segment.reset_infos = {k: v for k, v in segment.reset_infos.items() if (policy, True, k.name) not in mixed}
