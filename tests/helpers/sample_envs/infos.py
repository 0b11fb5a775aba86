"""Environments whose infos vary from step to step."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from sample_envs.lengths import Ragged

_VALUES = (1, 2.5, "text", None, np.zeros(2), np.ones((2, 1)), [1, [2]], 2**64)


class VariedInfos(Ragged):
    """Episodes as of `Ragged`, whose infos have values of other types and shapes in each step, or none.

    The infos are a function of the episode's seed and the number of the step.
    """

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, _ = super().reset(seed=seed)
        self._seed = seed
        return observation, self._infos()

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        *others, _ = super().step(action)
        return *others, self._infos()  # type: ignore[return-value]  # the first four are there

    def _infos(self) -> dict[str, Any]:
        source = random.Random(f"{self._seed} {self._step}")
        infos = {name: source.choice(_VALUES) for name in ("odd", "even") if source.random() < 0.7}
        if source.random() < 0.9:
            infos["steady"] = np.full(2, self._step)
        return infos | ({"rare": source.choice(_VALUES)} if self._step == 5 else {})
