"""Random batches as learners get them: episodes and fragments, all kinds of ends, nested and plain observations."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from rollserve import EpisodeBatch


def random_batch(
    lengths: list[int], seed: int, *, dtype: type = np.float64, nested: bool = False, **changes: Any
) -> EpisodeBatch:
    """Return a batch with random numbers in all columns, and each segment's ends drawn at random.

    The observation in step t of segment i is 1000 i + t in every leaf, so that a test sees where it came from.
    """
    generator = np.random.default_rng(seed)
    num_steps, num_segments = sum(lengths), len(lengths)
    rows = np.concatenate([1000 * i + np.arange(length) for i, length in enumerate(lengths)] or [np.zeros(0, np.int64)])
    last = np.array([1000 * i + length for i, length in enumerate(lengths)], np.int64)

    def observed(numbers: np.ndarray) -> Any:
        plain = np.stack([numbers, -numbers], axis=1).astype(dtype)
        return {"image": plain[:, :, np.newaxis].astype(np.int32), "0/x": numbers.astype(dtype)} if nested else plain

    columns: dict[str, Any] = {
        "observations": observed(rows),
        "last_observations": observed(last),
        "actions": {"a": rows, "b": rows[:, np.newaxis]} if nested else rows,
        "rewards": generator.normal(size=num_steps).astype(dtype),
        "lengths": np.array(lengths, np.int64),
        "terminated": generator.random(num_segments) < 0.4,
        "truncated": generator.random(num_segments) < 0.4,
        "agent_infos": {
            "value": generator.normal(size=num_steps).astype(dtype),
            "log_prob": -np.abs(generator.normal(size=num_steps).astype(dtype) - 1),
        },
        "env_infos": {"x": rows},
        "first_steps": generator.integers(0, 2, num_segments) * 7,
    }
    return EpisodeBatch(**(columns | changes))


@st.composite
def learner_batches(draw: st.DrawFn, max_length: int = 9) -> EpisodeBatch:
    """Draw a batch of one to six segments."""
    lengths = draw(st.lists(st.integers(1, max_length), min_size=1, max_size=6))
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    return random_batch(lengths, draw(st.integers(0, 2**32 - 1)), dtype=dtype, nested=draw(st.booleans()))


def last_values_of(batch: EpisodeBatch) -> np.ndarray:
    """Return a value for each last observation; NaN where nobody may use it."""
    values = np.random.default_rng(len(batch)).normal(size=len(batch)).astype(batch.rewards.dtype)
    return np.where(batch.terminated, np.float32(np.nan), values)


def values_after(batch: EpisodeBatch, segment: int, values: np.ndarray, last_values: np.ndarray) -> list[float]:
    """Return the values of a segment's observations and of its last one, 0 if it terminated, as a plain list."""
    start = int(batch.lengths[:segment].sum())
    last = 0.0 if batch.terminated[segment] else float(last_values[segment])
    return [*values[start : start + int(batch.lengths[segment])].tolist(), last]
