"""Episodes replayed in an environment of gymnasium, step by step, and the pictures that it renders."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Iterator
from typing import Any

import numpy as np

from rollserve._codec.columns import leaves_of
from rollserve._formats.gymnasium_spaces import space_of_gymnasium, space_values, value_leaves
from rollserve.errors import mismatch

__all__ = ["replayed", "replayed_frames"]


def replayed(
    env: Any, segment: Any, options: dict[str, Any] | None, *, observations: bool
) -> Generator[None, None, str]:
    """Replay a batch of one whole episode; yield after the reset and after each step.

    Observations are compared bit by bit, rewards after casting to the column's dtype. A limit of the call may have
    ended the episode before the environment did.

    Args:
        env: the environment.
        segment: the batch.
        options: options of the reset.
        observations: whether to compare observations, which transforms may have changed.

    Returns:
        Where the episode first differs from the recorded one, where the replay ends; empty if it does not.
    """
    space, action_space = space_of_gymnasium(env.observation_space), space_of_gymnasium(env.action_space)
    rewards = segment.rewards if segment.raw_rewards is None else segment.raw_rewards
    actions = leaves_of(segment.actions if segment.env_actions is None else segment.env_actions)
    recorded, last = leaves_of(segment.observations), leaves_of(segment.last_observations)
    observation, _ = env.reset(seed=int(segment.env_seeds[0]), options=copy.deepcopy(options))
    yield
    num_steps = len(rewards)
    for step in range(num_steps):
        expected = {name: array[step] for name, array in recorded.items()}
        if observations and (leaf := _different(value_leaves(observation, space), expected)) is not None:
            return f"observations{leaf} before step {step}"
        action = space_values({name: array[step] for name, array in actions.items()}, action_space)
        observation, reward, terminated, truncated, _ = env.step(action)
        if not _same_bits(np.asarray(reward).astype(rewards.dtype), rewards[step]):
            return f"rewards: {rewards[step]} at step {step}, replayed {reward}"
        is_last = step == num_steps - 1
        ends = bool(terminated), bool(truncated)
        recorded_ends = bool(is_last and segment.terminated[0]), bool(is_last and segment.truncated[0])
        if ends[0] != recorded_ends[0] or ends[1] > recorded_ends[1]:
            return f"terminated, truncated: {recorded_ends} at step {step}, replayed {ends}"
        yield
    expected = {name: array[0] for name, array in last.items()}
    if observations and (leaf := _different(value_leaves(observation, space), expected)) is not None:
        return f"last_observations{leaf}"
    return ""


def replayed_frames(
    make_env: Callable[[], Any], segment: Any, options: dict[str, Any] | None, *, observations: bool
) -> Iterator[np.ndarray]:
    """Yield the pictures of a replayed episode; see `EpisodeBatch.replay`.

    Raises:
        ValueError: a segment that is no whole episode with a seed, an environment that renders no arrays, or an episode
            that differs from the recorded one.
    """
    if segment.env_seeds is None or segment.first_steps[0]:
        expected = "an episode from its beginning, with its seed"
        got = "one without a seed" if segment.env_seeds is None else f"one from step {segment.first_steps[0]} on"
        raise ValueError(f"segment: {mismatch(expected, got)}")
    env = make_env()
    try:
        steps = replayed(env, segment, options, observations=observations)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                if end.value:
                    raise ValueError(f"replay: {mismatch('the recorded episode', end.value)}") from None
                return
            yield _frame_of(env)
    finally:
        env.close()


def _frame_of(env: Any) -> np.ndarray:
    frame = env.render()
    if not (isinstance(frame, np.ndarray) and frame.dtype == np.uint8 and frame.ndim == 3 and frame.shape[2] == 3):
        got = f"{frame.dtype} of shape {frame.shape}" if isinstance(frame, np.ndarray) else type(frame).__name__
        hint = "make it with render_mode='rgb_array'"
        raise ValueError(f"make_env: {mismatch('an environment that renders uint8 (height, width, 3)', got, hint)}")
    return frame


def _different(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> str | None:
    """Return the first leaf that differs, behind a slash; None if none does."""
    if found.keys() != expected.keys():
        return f" with the leaves {sorted(expected)}, replayed {sorted(found)}"
    for name, array in expected.items():
        if found[name].shape != array.shape or not _same_bits(found[name].astype(array.dtype), array):
            return f"/{name}" if name else ""
    return None


def _same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    return np.ascontiguousarray(one).tobytes() == np.ascontiguousarray(other).tobytes()
