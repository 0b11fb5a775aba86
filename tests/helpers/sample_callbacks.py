"""Callbacks for tests; `sample_agents-1.0.dist-info` beside this file registers them as installed."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from rollserve_server.envs import Callback, CallbackSteps


class Tally(Callback):
    """Counts the steps and sums the rewards of each episode; tells the sum at its end."""

    def __init__(self, num_rows: int, observation_space: Any, action_space: Any) -> None:
        self._counts = np.full(num_rows, -1_000_000)
        self._totals = np.zeros(num_rows)
        self._firsts = np.zeros(num_rows)

    def on_episode_begin(self, rows: np.ndarray, observations: Any) -> None:
        self._counts[rows] = 0
        self._totals[rows] = 0.0
        self._firsts[rows] = first_numbers(observations)

    def on_step(self, steps: CallbackSteps) -> Any:
        self._counts[steps.rows] += 1
        self._totals[steps.rows] += steps.rewards
        both = np.stack([first_numbers(steps.observations), self._firsts[steps.rows]], axis=1)
        return {"count": self._counts[steps.rows], "numbers": both, "action": steps.actions, "raw": steps.raw_rewards}

    def on_episode_end(self, steps: CallbackSteps) -> Any:
        return {"total": self._totals[steps.rows], "is_terminal": steps.terminated}


def first_numbers(observations: Any) -> np.ndarray:
    """Return the first number of each observation."""
    leaf = observations if isinstance(observations, np.ndarray) else observations["made"]
    numbers: np.ndarray = leaf.reshape(len(leaf), -1)[:, 0].astype(np.float64)
    return numbers


class Curious(Callback):
    """Looks at the environments: where the cart is."""

    def on_step(self, steps: CallbackSteps) -> Any:
        if isinstance(steps.envs, list):
            return {"x": [steps.envs[row].unwrapped.state[0] for row in steps.rows]}
        return {"x": steps.envs.unwrapped.state[0][steps.rows]}  # type: ignore[union-attr]


class BrokenMaking(Callback):
    """Cannot be made."""

    def __init__(self, num_rows: int, observation_space: Any, action_space: Any) -> None:
        raise ValueError("not today")


class BrokenBegin(Callback):
    """Raises when episodes begin."""

    def on_episode_begin(self, rows: np.ndarray, observations: Any) -> None:
        raise ValueError("not today")


class BrokenStep(Callback):
    """Raises in each step of a worker."""

    def on_step(self, steps: CallbackSteps) -> Any:
        raise ValueError("not today")


class BrokenEnd(Callback):
    """Raises when episodes of more than 9 steps end, which no probe makes."""

    def on_episode_begin(self, rows: np.ndarray, observations: Any) -> None:
        self._count = 0

    def on_step(self, steps: CallbackSteps) -> Any:
        self._count += 1

    def on_episode_end(self, steps: CallbackSteps) -> Any:
        if self._count > 9:
            raise ValueError("not today")


class Flaky(Tally):
    """Raises once in each process that is named by the variable FLAKY, in its 40th step."""

    num_steps = 0

    def on_step(self, steps: CallbackSteps) -> Any:
        Flaky.num_steps += 1
        if Flaky.num_steps == 40 and os.environ.get("FLAKY") == str(os.getpid()):
            raise ValueError("once")
        return super().on_step(steps)


class Misshapen(Callback):
    """Returns infos of one row too many."""

    def on_step(self, steps: CallbackSteps) -> Any:
        return {"x": np.zeros(len(steps.rows) + 1)}


class Masked(Callback):
    """Returns an info with the name of a mask."""

    def on_step(self, steps: CallbackSteps) -> Any:
        return {"_x": np.zeros(len(steps.rows))}


class Doubled(Callback):
    """Returns the same info of a step and of an end."""

    def on_step(self, steps: CallbackSteps) -> Any:
        return {"x": np.zeros(len(steps.rows))}

    on_episode_end = on_step
