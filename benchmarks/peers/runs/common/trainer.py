"""The trainer's side of plain loops: the policy, and columns for the results."""

from __future__ import annotations

import numpy as np

from benchmarks.peers.runs.common.policy import MlpPolicy

__all__ = ["NUM_CALL_STEPS", "TrainerSide"]

NUM_CALL_STEPS = 16
"""Number of steps of all rows between two looks at the clock."""
_NUM_COLUMN_STEPS = 64
_NUM_ACTIONS = {"w1": 2, "w3": 6}
_NUM_CHEETAH_JOINTS = 6


class TrainerSide:
    """Acts in rows that are stepped together, and stores the results in columns, as a trainer would.

    Rows reset in the step after an episode's end; that step does not count.
    """

    def __init__(self, workload: str, observations: np.ndarray) -> None:
        self._num_rows = len(observations)
        self._generator = np.random.default_rng(0)
        self._num_actions = _NUM_ACTIONS.get(workload, 0)
        self._policy = None
        if workload != "w3":
            num_outputs = self._num_actions or _NUM_CHEETAH_JOINTS
            categorical = workload == "w1"
            self._policy = MlpPolicy(self._num_rows, observations.shape[1], num_outputs, categorical=categorical)
        self._columns: dict[str, np.ndarray] = {}
        self._step = 0

    def act(self, observations: np.ndarray) -> np.ndarray:
        """Return actions, (M,) or (M, *A), for observations (M, *O); store both."""
        if self._policy is None:
            actions = self._generator.integers(0, self._num_actions, self._num_rows)
            self._write(observations=observations, actions=actions)
        else:
            actions, log_probs = self._policy.act(observations)
            self._write(observations=observations, actions=actions, log_probs=log_probs)
        return actions

    def store(self, rewards: np.ndarray, terminated: np.ndarray, truncated: np.ndarray) -> int:
        """Store the results of the actions, (M,) each; return the number of steps that count."""
        self._write(rewards=rewards, terminated=terminated, truncated=truncated)
        self._step = (self._step + 1) % _NUM_COLUMN_STEPS
        return self._num_rows - int(np.count_nonzero(terminated | truncated))

    def _write(self, **values: np.ndarray) -> None:
        for name, value in values.items():
            if name not in self._columns:
                self._columns[name] = np.empty((_NUM_COLUMN_STEPS, *value.shape), value.dtype)
            self._columns[name][self._step] = value
