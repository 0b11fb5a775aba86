"""Batches as tensordicts with the keys of TorchRL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve.bridges.tensors import to_torch
from rollserve.bridges.trees import nested, step_positions
from rollserve.learning.arguments import checked_last_values, infos_or
from rollserve.learning.transitions import transitions
from rollserve_wire.columns import mask_name
from rollserve_wire.extras import load

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike

__all__ = ["to_tensordict"]


def to_tensordict(
    batch: Any, values: ArrayLike | None = None, last_values: ArrayLike | None = None, *, device: Any = None
) -> Any:
    """Return a batch as a TensorDict of batch size (T,) with TorchRL's keys, for its estimators and losses.

    The steps of a segment follow each other, and the last one is `done`, so that no advantage crosses its end. A
    fragment whose episode goes on counts as truncated there, as with `set_truncated` of TorchRL's collectors.

    >>> data = batch.to_tensordict()  # doctest: +SKIP
    >>> loss = ClipPPOLoss(actor, critic)(GAE(gamma=0.99, lmbda=0.95, value_network=critic)(data))  # doctest: +SKIP

    Args:
        batch: an `EpisodeBatch`.
        values: (T,), value of each observation; by default `agent_infos["value"]`.
        last_values: (N,), value of each last observation; by default the batch's own, if `values` are, too. If there
            are any, or `values` are given, the result has `state_value` twice, for estimators without a network.
        device: device of the tensors.

    Returns:
        `observation` (T, *O) and `action` (T, *A), which share the batch's memory on the CPU; `sample_log_prob` and
        `action_log_prob`, one tensor (T,) under both names that TorchRL has for it; `is_init` (T, 1), whether the
        episode begins; `done`, `terminated` and `truncated` (T, 1), all false; `("collector", "traj_ids")` (T,), the
        segment; `agent_infos` and `env_infos` by name; and under `next`: `observation`, `reward` (T, 1) float32, and
        `done`, `terminated` and `truncated` (T, 1) of the step. Leaves of Dict and Tuple spaces are nested keys, such
        as `("observation", "camera")`.

    Raises:
        ImportError: TorchRL or PyTorch is not installed.
        ValueError: values of another shape, or missing ones.
    """
    tensordict = load("tensordict", "torchrl")
    found = transitions(batch, 1, None)
    ends = np.cumsum(batch.lengths) - 1
    truncated = found.truncated.copy()
    truncated[ends[~(batch.terminated | batch.truncated)]] = True
    segments, steps = step_positions(batch)
    following = {
        "observation": _nested(found.next_observations),
        "reward": _column(batch.rewards.astype(np.float32)),
        "done": _column(found.terminated | truncated),
        "terminated": _column(found.terminated),
        "truncated": _column(truncated),
    }
    columns: dict[str, Any] = {
        "observation": _nested(batch.observations),
        "action": _nested(batch.actions),
        **{name: np.zeros((len(steps), 1), np.bool_) for name in ("done", "terminated", "truncated")},
        "is_init": _column(steps == 0),
        "collector": {"traj_ids": segments},
        "agent_infos": nested(batch.agent_infos),
        "env_infos": nested(batch.env_infos),
        "next": following,
    }
    if _has_info(batch, "log_prob"):
        columns["sample_log_prob"] = batch.agent_infos["log_prob"]
    if values is not None or last_values is not None or batch.last_values is not None:
        after_ends = checked_last_values(batch, last_values, own=values is None)
        values = infos_or(batch, "values", values, "value")
        after = np.empty_like(values)
        after[:-1] = values[1:]
        after[ends] = after_ends
        columns["state_value"], following["state_value"] = _column(values), _column(after)
    tensors = to_torch(columns, device)
    if "sample_log_prob" in tensors:
        tensors["action_log_prob"] = tensors["sample_log_prob"]
    return tensordict.TensorDict(tensors, batch_size=[len(steps)], device=device)


def _nested(columns: Any) -> Any:
    return columns if isinstance(columns, np.ndarray) else nested(columns)


def _column(array: np.ndarray) -> np.ndarray:
    """Return (T,) numbers as TorchRL has them, (T, 1), with the same memory."""
    return array[:, np.newaxis]


def _has_info(batch: Any, name: str) -> bool:
    infos: Mapping[str, np.ndarray] = batch.agent_infos
    return name in infos and mask_name(name) not in infos
