"""Replays: recorded actions that bring rows back to where they stood."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from rollserve_server.envs import RowEnvs, VectorEnvs

__all__ = ["DivergedError", "is_same", "joint_actions", "replay_row"]


class DivergedError(Exception):
    """A replayed episode ended where the recorded episode went on."""


def replay_row(envs: RowEnvs, row: int, actions: Sequence[np.ndarray], num_steps: int) -> Iterator[Mapping[str, Any]]:
    """Step one row, which has just been reset, with recorded actions. Yields the infos of each step after it.

    Args:
        envs: the environments.
        row: index of the row.
        actions: for each leaf of the action space (num_steps, *A).
        num_steps: number of steps.

    Raises:
        EnvFailedError: the environment failed.
        DivergedError: the episode ended.
    """
    for step in range(num_steps):
        infos = envs.step((row,), _for_all_rows(envs, actions, step))
        if envs.failures:
            raise envs.failures[0]
        yield infos[0][1] if infos else {}
        if envs.terminated[row] or envs.truncated[row]:
            raise DivergedError


def joint_actions(envs: VectorEnvs, logs: Sequence[Sequence[np.ndarray]], num_steps: int) -> Iterator[list[np.ndarray]]:
    """Yield the actions of all rows, (M, *A) for each leaf, step by step, given each row's actions (num_steps, *A)."""
    leaves = zip(envs.action_leaves, zip(*logs, strict=True), strict=True)
    columns = [np.stack(log).astype(leaf.dtype, copy=False) for leaf, log in leaves]
    for step in range(num_steps):
        yield [column[:, step] for column in columns]


def is_same(observations: Sequence[np.ndarray], recorded: Sequence[np.ndarray]) -> bool:
    """Return whether observations are the recorded ones, bit for bit."""
    return all(one.tobytes() == other.tobytes() for one, other in zip(observations, recorded, strict=True))


def _for_all_rows(envs: RowEnvs, actions: Sequence[np.ndarray], step: int) -> list[np.ndarray]:
    """Return the actions of a step, repeated for all rows."""
    leaves = zip(envs.action_leaves, actions, strict=True)
    return [np.broadcast_to(log[step].astype(leaf.dtype), (envs.num_rows, *leaf.shape)) for leaf, log in leaves]
