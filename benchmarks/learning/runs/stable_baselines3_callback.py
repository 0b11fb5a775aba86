"""Progress of Stable-Baselines3's trainers."""

from __future__ import annotations

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback

from benchmarks.learning.runs.progress import Progress

__all__ = ["ReportingCallback"]


class ReportingCallback(BaseCallback):
    """Reports after each rollout, and ends the training when the task is done."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress, self._is_done = progress, False

    def _on_training_start(self) -> None:
        self._progress.start()

    def _on_rollout_start(self) -> None:
        # Before the next rollout, so that the learning from the last one counts, as with everybody.
        returns = [episode["r"] for episode in self.model.ep_info_buffer or ()]
        if self.num_timesteps:
            mean_return = float(np.mean(returns)) if returns else float("nan")
            self._is_done = self._progress.report(self.num_timesteps, mean_return, len(returns))

    def _on_step(self) -> bool:
        return not self._is_done
