"""Episodes replayed in an environment of gymnasium, step by step, and the pictures that it renders."""

from __future__ import annotations

import copy
import math
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from rollserve_wire.columns import leaves_of, original
from rollserve_wire.errors import mismatch
from rollserve_wire.gymnasium_spaces import space_of_gymnasium, space_values, value_leaves

__all__ = [
    "ObservationArrays",
    "ObservationChecksums",
    "Observations",
    "RecordedEpisode",
    "checked_segment",
    "checksums",
    "frame_of",
    "has_own_seeds",
    "recorded_episode",
    "replayed",
    "replayed_frames",
]


class Observations(Protocol):
    """The recorded observations of an episode, in a form that a replay can be compared with."""

    def difference(self, step: int, leaves: Mapping[str, np.ndarray]) -> str | None:
        """Return which leaf of the observation before a step differs, behind a slash; empty for the whole, else None.

        Args:
            step: number of steps before the observation; T for the last one.
            leaves: the replayed observation, as arrays by leaf.
        """
        ...


@dataclass(frozen=True)
class ObservationArrays:
    """Observations by leaf, (T, *O) each, and the last ones, (1, *O) each."""

    observations: Mapping[str, np.ndarray]
    last: Mapping[str, np.ndarray]

    def difference(self, step: int, leaves: Mapping[str, np.ndarray]) -> str | None:
        """Return which leaf differs; see `Observations`."""
        num_steps = len(next(iter(self.observations.values()), ()))
        arrays, row = (self.observations, step) if step < num_steps else (self.last, 0)
        if leaves.keys() != arrays.keys():
            return f" with the leaves {sorted(arrays)}, replayed {sorted(leaves)}"
        for name, array in arrays.items():
            if leaves[name].shape != array.shape[1:] or not _same_bits(leaves[name].astype(array.dtype), array[row]):
                return f"/{name}" if name else ""
        return None


@dataclass(frozen=True)
class ObservationChecksums:
    """CRC-32 of each observation, (T + 1) uint32; see `checksums`."""

    values: np.ndarray

    def difference(self, step: int, leaves: Mapping[str, np.ndarray]) -> str | None:
        """Return an empty text if the checksum differs; see `Observations`."""
        rows = {name: array[None] for name, array in leaves.items()}
        return None if checksums(rows)[0] == self.values[step] else ""


@dataclass(frozen=True)
class RecordedEpisode:
    """A whole episode, as a replay needs it.

    Attributes:
        env_seed: seed of the reset.
        actions: by leaf (T, *A), as the environment got them.
        rewards: (T), as the environment returned them; None if neither they nor the end are compared.
        terminated: whether the environment terminated the episode.
        truncated: whether the episode was truncated, by the environment or by a limit of the call.
        observations: the observations; None if they are not compared.
        values: (T), the agent's values; None if there are none.
    """

    env_seed: int
    actions: Mapping[str, np.ndarray]
    rewards: np.ndarray | None
    terminated: bool = False
    truncated: bool = False
    observations: Observations | None = None
    values: np.ndarray | None = None

    @property
    def num_steps(self) -> int:
        """Number of steps, T."""
        return len(next(iter(self.actions.values()), ()))


def checked_segment(batch: Any, segment: int) -> int:
    """Return the position of a segment, negative ones counted from the end; raise IndexError for no segment's."""
    try:
        return range(len(batch))[segment]
    except IndexError:
        expected = f"a segment from 0 to {len(batch) - 1}" if len(batch) else "a batch with segments"
        raise IndexError(f"segment: {mismatch(expected, segment)}") from None


def has_own_seeds(batch: Any) -> bool:
    """Whether a reset with the seed of an episode makes the episode, as far as the batch tells.

    Native rows are seeded by the block, so that their episodes share a seed and only the block can be made again. A
    receipt of class BLOCK says so, and so does a quarter of the episodes with the seed of another one: fewer can be
    chance, as seeds have 32 bits.
    """
    seeds, receipt = batch.env_seeds, batch.receipt
    if seeds is None or (receipt is not None and receipt.reproducibility == "BLOCK"):
        return False
    episodes = np.unique(np.stack([seeds, batch.episode_indices], axis=1), axis=0)
    num_shared = len(episodes) - len(np.unique(episodes[:, 0]))
    return not num_shared or 4 * num_shared < len(episodes)


def recorded_episode(segment: Any, *, observations: bool) -> RecordedEpisode:
    """Return the episode of a batch of one segment.

    Args:
        segment: the batch.
        observations: whether its observations are what the environment returned, and not what transforms made of it.

    Raises:
        ValueError: the segment is no whole episode with a seed.
    """
    if segment.env_seeds is None or segment.first_steps[0]:
        expected = "an episode from its beginning, with its seed"
        got = "one without a seed" if segment.env_seeds is None else f"one from step {segment.first_steps[0]} on"
        raise ValueError(f"segment: {mismatch(expected, got)}")
    recorded, last = leaves_of(segment.observations), leaves_of(segment.last_observations)
    return RecordedEpisode(
        env_seed=int(segment.env_seeds[0]),
        actions=leaves_of(original(segment, "actions")),
        rewards=original(segment, "rewards"),
        terminated=bool(segment.terminated[0]),
        truncated=bool(segment.truncated[0]),
        observations=ObservationArrays(recorded, last) if observations else None,
        values=segment.agent_infos.get("value"),
    )


def checksums(leaves: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the CRC-32 of each row of columns: of the bytes of its leaves, in the order of the sorted names.

    Args:
        leaves: columns by leaf, (T, *O) each.

    Returns:
        (T) uint32.
    """
    arrays = [np.ascontiguousarray(leaves[name], leaves[name].dtype.newbyteorder("<")) for name in sorted(leaves)]
    found = np.zeros(len(arrays[0]) if arrays else 0, np.uint32)
    for array in arrays:
        for row, part in enumerate(array.reshape(len(array), math.prod(array.shape[1:])).view(np.uint8)):
            found[row] = zlib.crc32(part.data, int(found[row]))
    return found


def replayed(env: Any, episode: RecordedEpisode, options: dict[str, Any] | None) -> Generator[float | None, None, str]:
    """Replay an episode; yield None after the reset, and the reward after each step.

    Observations are compared bit by bit, rewards after casting to the column's dtype. A limit of the call may have
    ended the episode before the environment did.

    Args:
        env: the environment.
        episode: the episode.
        options: options of the reset.

    Returns:
        Where the episode first differs from the recorded one, where the replay ends; empty if it does not.
    """
    space, action_space = space_of_gymnasium(env.observation_space), space_of_gymnasium(env.action_space)
    observed, num_steps = episode.observations, episode.num_steps
    observation, _ = env.reset(seed=episode.env_seed, options=copy.deepcopy(options))
    yield None
    for step in range(num_steps):
        if observed is not None and (leaf := observed.difference(step, value_leaves(observation, space))) is not None:
            return f"observations{leaf} before step {step}"
        action = space_values({name: array[step] for name, array in episode.actions.items()}, action_space)
        observation, reward, terminated, truncated, _ = env.step(action)
        difference = _end_difference(episode, step, reward, bool(terminated), bool(truncated))
        if difference:
            return difference
        yield float(reward)
    if observed is not None and (leaf := observed.difference(num_steps, value_leaves(observation, space))) is not None:
        return f"last_observations{leaf}"
    return ""


def _end_difference(episode: RecordedEpisode, step: int, reward: Any, terminated: bool, truncated: bool) -> str:
    """Return in which way the reward or the end of a step differs; empty if neither does."""
    is_last, rewards = step == episode.num_steps - 1, episode.rewards
    if rewards is None:
        if (terminated or truncated) and not is_last:
            return f"actions: {episode.num_steps} of them, but the episode ends after {step + 1}"
        return ""
    if not _same_bits(np.asarray(reward).astype(rewards.dtype), rewards[step]):
        return f"rewards: {rewards[step]} at step {step}, replayed {reward}"
    recorded = is_last and episode.terminated, is_last and episode.truncated
    if terminated != recorded[0] or truncated > recorded[1]:
        return f"terminated, truncated: {recorded} at step {step}, replayed {(terminated, truncated)}"
    return ""


def replayed_frames(
    make_env: Callable[[], Any], segment: Any, options: dict[str, Any] | None, *, observations: bool
) -> Iterator[np.ndarray]:
    """Yield the pictures of a replayed episode; see `EpisodeBatch.replay`.

    Raises:
        ValueError: a segment that is no whole episode with a seed, an environment that renders no arrays, or an episode
            that differs from the recorded one.
    """
    episode = recorded_episode(segment, observations=observations)
    env = make_env()
    try:
        steps = replayed(env, episode, options)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                if end.value:
                    hint = (
                        "the environment is another one, or the episode one of native rows, whose seeds make blocks: "
                        "EnvSpec(vectorization='rows') has episodes of their own"
                    )
                    raise ValueError(f"replay: {mismatch('the recorded episode', end.value, hint)}") from None
                return
            yield frame_of(env)
    finally:
        env.close()


def frame_of(env: Any) -> np.ndarray:
    """Return the picture of an environment, (height, width, 3) uint8; raise ValueError if it renders something else."""
    frame = env.render()
    if not (
        isinstance(frame, np.ndarray)
        and frame.dtype == np.uint8
        and frame.ndim == 3
        and frame.shape[2] == 3
        and frame.size
    ):
        got = f"{frame.dtype} of shape {frame.shape}" if isinstance(frame, np.ndarray) else type(frame).__name__
        hint = "make it with render_mode='rgb_array'"
        raise ValueError(f"make_env: {mismatch('an environment that renders uint8 (height, width, 3)', got, hint)}")
    return frame


def _same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    return np.ascontiguousarray(one).tobytes() == np.ascontiguousarray(other).tobytes()
