"""Rollout buffers of Stable-Baselines3, filled with fragments."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve._codec.row_layout import columns_by_row
from rollserve.bridges.tensors import to_torch
from rollserve.learning.arguments import checked_last_values, infos_or
from rollserve_wire.columns import map_columns
from rollserve_wire.errors import mismatch
from rollserve_wire.extras import load

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = ["fill_rollout_buffer"]

_CHUNK = 4096
"""Observations that a policy evaluates at once, which bounds the memory that it takes."""


def fill_rollout_buffer(
    buffer: Any,
    batch: Any,
    model: Any = None,
    *,
    values: ArrayLike | None = None,
    last_values: ArrayLike | None = None,
) -> None:
    """Fill a `RolloutBuffer` or `DictRolloutBuffer` of Stable-Baselines3, as `collect_rollouts` does.

    The buffer then has what Stable-Baselines3 would have collected from the same steps: rewards of steps at a time
    limit include the discounted value of the last observation, and returns and advantages are computed.

    >>> batch = sampler.obtain_fragments(model.n_steps * model.n_envs)  # doctest: +SKIP
    >>> rollserve.bridges.fill_rollout_buffer(model.rollout_buffer, batch, model)  # doctest: +SKIP
    >>> model.train()  # doctest: +SKIP

    Args:
        buffer: the buffer; what it held is dropped.
        batch: an `EpisodeBatch` of `obtain_fragments`, with as many rows as the buffer has environments, and as many
            steps of each row as the buffer holds. Its agent has the info `log_prob`.
        model: algorithm such as `PPO`, or its policy, which computes the values that are not given.
        values: (T,), value of each observation; by default the model's, and without a model `agent_infos["value"]`.
        last_values: (N,), value of each last observation; by default the model's, and without a model the batch's own.
            Not needed if all segments terminated.

    Raises:
        ImportError: Stable-Baselines3's PyTorch is not installed.
        ValueError: a batch of another size, or without rows, values or `log_prob`; the buffer stays as it was.
    """
    torch = load("torch", "sb3")
    policy = getattr(model, "policy", model)
    if policy is not None:
        values = _values(torch, policy, batch.observations) if values is None else values
        last_values = _values(torch, policy, batch.last_observations) if last_values is None else last_values
    after_ends = checked_last_values(batch, last_values, own=values is None)
    rows, after = _rows(batch, infos_or(batch, "values", values, "value"), after_ends)
    shape, expected = rows["rewards"].shape, (buffer.buffer_size, buffer.n_envs)
    if shape != expected:
        text = mismatch("{} steps of each of {} rows, as the buffer holds".format(*expected), "{} of {}".format(*shape))
        raise ValueError(f"batch: {text}")
    rewards = rows["rewards"].astype(np.float32)
    at_limit = rows["truncated"] & ~rows["terminated"]
    rewards[at_limit] += np.float32(buffer.gamma) * after[at_limit]
    dones = rows["terminated"] | rows["truncated"]
    buffer.reset()
    _copy(buffer.observations, rows["observations"])
    buffer.actions[...] = rows["actions"].reshape(buffer.actions.shape)
    buffer.rewards[...] = rewards
    buffer.values[...] = rows["agent_infos"]["value"]
    buffer.log_probs[...] = rows["agent_infos"]["log_prob"]
    buffer.episode_starts[0] = rows["agent_infos"]["step"][0] == 0
    buffer.episode_starts[1:] = dones[:-1]
    buffer.pos, buffer.full = buffer.buffer_size, True
    buffer.compute_returns_and_advantage(torch.from_numpy(after[-1].copy()), dones[-1])


def _values(torch: Any, policy: Any, observations: Any) -> np.ndarray:
    """Return the policy's value of each observation, (M,) float32."""
    num_rows = len(next(iter(observations.values())) if isinstance(observations, Mapping) else observations)
    found = []
    with torch.no_grad():
        for start in range(0, num_rows, _CHUNK):
            part = map_columns(lambda array, start=start: array[start : start + _CHUNK], observations)  # type: ignore[misc]
            found.append(policy.predict_values(to_torch(part, policy.device)).cpu().numpy().ravel())
    return np.concatenate(found) if found else np.zeros(0, np.float32)


def _rows(batch: Any, values: np.ndarray, last_values: np.ndarray) -> tuple[dict[str, Any], np.ndarray]:
    """Return the columns of (T, R) steps, and the value after each step that ends a segment, (T, R) float32."""
    starts, ends = np.cumsum(batch.lengths) - batch.lengths, np.cumsum(batch.lengths) - 1
    after = np.zeros(len(batch.rewards), np.float32)
    after[ends] = last_values
    steps = np.arange(len(batch.rewards)) + np.repeat(batch.first_steps - starts, batch.lengths)
    log_probs = infos_or(batch, "agent_infos['log_prob']", None, "log_prob")
    infos = {"value": values, "log_prob": log_probs, "after": after, "step": steps}
    rows = columns_by_row(dataclasses.replace(batch, agent_infos=infos, env_infos={}))
    return rows, rows["agent_infos"]["after"]


def _copy(target: Any, columns: Any) -> None:
    """Copy observations into the buffer's array, or its arrays by key; Discrete ones get an axis there."""
    if isinstance(target, Mapping):
        for name, array in target.items():
            array[...] = columns[name].reshape(array.shape)
    else:
        target[...] = columns.reshape(target.shape)
