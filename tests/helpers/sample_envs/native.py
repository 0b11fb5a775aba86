"""Native vector environments."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from charges import go_off, hang, in_probe
from odd_errors import raise_odd

from sample_envs.failing import is_among_first
from sample_envs.lengths import check_pairs
from sample_envs.slow import FIRST_LOOK_SEEDS


class CoinRows(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Episodes of 1 step or of `num_steps`, with equal chance; all rows draw from one generator.

    Observations show the episode's length and the steps made; the info `left` shows how many steps are left.

    Arguments:
        num_envs: number of rows.
        num_steps: length of the long episodes.
        mode: autoreset mode.
        fails_after: number of vector steps before each one raises.
        charges: folder whose charges `purse` steps need to raise; empty if they need none.
        remembers: whether resets leave the generator as it is.
        max_episode_steps: number of steps at which episodes are truncated.
    """

    def __init__(
        self,
        num_envs: int,
        num_steps: int = 1000,
        mode: str = "NextStep",
        fails_after: int = 1 << 60,
        charges: str = "",
        remembers: bool = False,
        max_episode_steps: int | None = None,
    ) -> None:
        self.num_envs = num_envs
        self.single_observation_space = gymnasium.spaces.Dict(
            {"length": gymnasium.spaces.Discrete(1 << 20), "made": gymnasium.spaces.Box(0, 1 << 20, (2,), np.float32)}
        )
        self.single_action_space = gymnasium.spaces.Discrete(3)
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)
        self.metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode(mode)}
        self._num_steps = num_steps
        self._at_once = mode == "SameStep"
        self._fails_after = fails_after
        self._charges = charges
        self._remembers = remembers
        self._limit = max_episode_steps or num_steps
        self._lengths = np.zeros(num_envs, np.int64)
        self._made = np.zeros(num_envs, np.int64)
        self._ended = np.zeros(num_envs, np.bool_)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if not self._remembers:
            super().reset(seed=seed)
        self._ended[:] = False
        self._begin(np.ones(self.num_envs, np.bool_))
        return self._observations(), {"purse": np.arange(self.num_envs)}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self._fails_after -= 1
        if self._fails_after < 0 and (not self._charges or go_off(self._charges, "purse")):
            raise RuntimeError("the purse is empty")
        begun = self._ended.copy()
        self._made += 1
        self._begin(begun)
        terminated = (self._made == self._lengths) & ~begun
        truncated = (self._made == self._limit) & ~begun
        rewards = np.where(begun, 0.0, actions + 0.5)
        infos: dict[str, Any] = {"left": self._lengths - self._made, "_left": (self._made % 2 == 0) & ~begun}
        self._ended = terminated | truncated
        observations = self._observations()
        if self._at_once and self._ended.any():
            infos["final_obs"] = observations
            self._begin(self._ended)
            self._ended = np.zeros_like(self._ended)
            observations = self._observations()
        return observations, rewards, terminated, truncated, infos

    def _begin(self, rows: np.ndarray) -> None:
        self._lengths[rows] = np.where(self.np_random.random(int(rows.sum())) < 0.5, 1, self._num_steps)
        self._made[rows] = 0

    def _observations(self) -> dict[str, np.ndarray]:
        made = np.repeat(self._made[:, np.newaxis], 2, axis=1).astype(np.float32)
        return {"length": self._lengths.copy(), "made": made}


class TalkingRows(CoinRows):
    """Rows whose observations are texts, which native rows cannot have."""

    def __init__(self, num_envs: int, **kwargs: Any) -> None:
        super().__init__(num_envs, **kwargs)
        self.single_observation_space = gymnasium.spaces.Text(5)


class NoNumberRows(CoinRows):
    """Rows that show an infinity after every other step, and whose third step has NaN for a reward."""

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        observations, rewards, *rest = super().step(actions)
        return observations, np.where(self._made == 3, np.nan, rewards), *rest

    def _observations(self) -> dict[str, np.ndarray]:
        observations = super()._observations()
        observations["made"][self._made % 2 == 1, 1] = np.inf
        return observations


class UnlimitedCoinRows(CoinRows):
    """`CoinRows` whose constructor takes no limit of the length of episodes."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs, num_steps=30)


class ScreenRows(CoinRows):
    """`CoinRows` whose observations are stacks of 3 screens of 1 KiB.

    Arguments:
        num_envs: number of rows.
        num_steps: length of the long episodes.
        mode: autoreset mode.
        odd: whether one screen of step 17 differs between the stacks that hold it.
    """

    def __init__(self, num_envs: int, num_steps: int = 30, mode: str = "SameStep", odd: bool = False) -> None:
        super().__init__(num_envs, num_steps, mode)
        self.single_observation_space = gymnasium.spaces.Box(0, 255, (3, 16, 64), np.uint8)
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, num_envs)
        self._stacks = np.zeros((num_envs, 3, 16, 64), np.uint8)
        self._shown = np.zeros(num_envs, np.int64)
        self._odd = odd

    def _observations(self) -> Any:
        screens = (7 * self._lengths + self._made)[:, np.newaxis, np.newaxis, np.newaxis].astype(np.uint8)
        goes_on = (self._made > 0) & (self._made != self._shown)
        self._stacks[goes_on, :-1] = self._stacks[goes_on, 1:]
        self._stacks[goes_on, -1:] = screens[goes_on]
        self._stacks[self._made == 0] = screens[self._made == 0]
        if self._odd:
            self._stacks[self._made == 17, 0, 0, 0] = 255
        self._shown = self._made.copy()
        return self._stacks.copy()


class InfoRows(CoinRows):
    """`CoinRows` with infos of many kinds; some fit into no column."""

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        *rest, infos = super().step(actions)
        made = infos["left"]
        odd = bool(made.sum() % 2)
        infos |= {
            "steady": made + 0.25,
            "nested": {"deep": made * 2, "_deep": made % 3 == 0},
            "_nested": made % 2 == 0,
            "kind": made.astype(np.float64 if odd else np.int64),
            "shape": np.repeat(made[:, np.newaxis], 2, axis=1) if odd else made,
            "word": np.array([str(left) for left in made], object),
            "mixed": np.array([int(left) if left % 2 else "even" for left in made], object),
        }
        return *rest, infos  # type: ignore[return-value]


class FlakyCoinRows(CoinRows):
    """`CoinRows` whose blocks raise as episodes of `Flaky` do, never before their fourth step."""

    def __init__(
        self,
        num_envs: int,
        folder: str = "",
        at: str = "step",
        one_in: int = 2,
        times: int = 0,
        num_steps: int = 40,
        mode: str = "NextStep",
    ) -> None:
        super().__init__(num_envs, num_steps, mode)
        self._folder, self._at, self._one_in, self._times = folder, at, one_in, times

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        result = super().reset(seed=seed, options=options)
        self._name = str(seed) if seed is not None and seed > 1000 and seed % self._one_in == 0 else ""
        self._raises_at, self._num_made = 3 + (seed or 0) // self._one_in % 30, 0
        self._maybe_raise("reset")
        return result

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        if self._num_made == self._raises_at:
            self._maybe_raise("step")
        if self._at == "anywhere" and not in_probe() and random.randrange(self._one_in) == 0:
            raise RuntimeError("broken by design")
        self._num_made += 1
        return super().step(actions)

    def _maybe_raise(self, at: str) -> None:
        if self._name and self._at == at and is_among_first(self._folder, self._name, self._times):
            raise RuntimeError("broken by design")


class HangingRows(CoinRows):
    """`CoinRows` whose `step` hangs once for each charge in a folder."""

    def __init__(self, num_envs: int, folder: str) -> None:
        super().__init__(num_envs, num_steps=30)
        self._folder = folder

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._is_first_look = seed in FIRST_LOOK_SEEDS
        return super().reset(seed=seed, options=options)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        if not self._is_first_look and go_off(self._folder, "step"):
            hang()
        return super().step(actions)


class RaisingRows(CoinRows):
    """`CoinRows` whose construction (`make`) or `step` raises once for each charge in a folder."""

    def __init__(self, num_envs: int, folder: str, max_episode_steps: int | None = None) -> None:
        super().__init__(num_envs, num_steps=5, mode="SameStep", max_episode_steps=max_episode_steps)
        if go_off(folder, "make"):
            raise RuntimeError("broken by design")
        self._folder = folder

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        if go_off(self._folder, "step"):
            raise RuntimeError("broken by design")
        return super().step(actions)


class PairRows(CoinRows):
    """`CoinRows` with the arguments of `Pairs`."""

    def __init__(
        self,
        num_envs: int,
        pairs: tuple[tuple[int, int], ...] = (),
        either: int | tuple[int, tuple[int, int]] | None = None,
        rows: list[tuple[int, int]] | None = None,
        named: dict[str, tuple[int, ...]] | None = None,
        default: Any = ((0, 1), [2]),
        plain: Any = None,
    ) -> None:
        super().__init__(num_envs)
        check_pairs(pairs, either, rows, named, default, plain)


class OddRows(CoinRows):
    """`CoinRows` that raise an odd error in their construction, or else as `Odd` does."""

    def __init__(self, num_envs: int, error: str, at: str = "step", mode: str = "NextStep") -> None:
        super().__init__(num_envs, num_steps=5, mode=mode)
        self._error, self._at = error, at
        self._raise("construction")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._raise("reset")
        return super().reset(seed=seed, options=options)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self._raise("step")
        return super().step(actions)

    def close_extras(self, **kwargs: Any) -> None:
        self._raise("close")

    def _raise(self, at: str) -> None:
        if self._at == at and (at == "construction" or not in_probe()):
            raise_odd(self._error)


INFOS: dict[str, Any] = {
    "number": {"count": 3, "nested": {"count": 0.5}},
    "text": {"map": "wood"},
    "nothing": {"nothing": None},
    "int name": {7: np.arange(4), "8": {9: np.arange(4)}},
    "few rows": {"few": np.arange(3), "fewer": [1]},
    "no axes": {"scalar": np.array(3)},
    "empty": {"empty": np.zeros((0, 4))},
    "mask": {"masked": np.arange(4), "_masked": "yes", "all": np.arange(4), "_all": True},
}
"""Infos of 4 rows; some are no columns."""

_FINALS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "old key": lambda final: {"final_observation": final},
    "none": lambda final: {"final_obs": None},
    "shape": lambda final: {"final_obs": {**final, "made": final["made"][:, :1]}},
    "dtype": lambda final: {"final_obs": {**final, "length": final["length"] + 0.5}},
    "leaf": lambda final: {"final_obs": {"made": final["made"]}},
    "few rows": lambda final: {"final_obs": {name: column[:3] for name, column in final.items()}},
    "list": lambda final: {"final_obs": [final]},
    "mask": lambda final: {"final_obs": final, "_final_obs": np.zeros(4, np.bool_)},
    "final infos": lambda final: {"final_obs": final, "final_info": np.zeros(4, object)},
    "objects": lambda final: {
        "final_obs": np.array([{name: final[name][row] for name in final} for row in range(4)], object)
    },
}
"""Places of the last observations of 4 rows, by the fault; the last one is none."""


class OddInfoRows(CoinRows):
    """`CoinRows` with infos that are no columns, or with other last observations than gymnasium's convention has."""

    def __init__(self, num_envs: int, infos: str = "", final: str = "", mode: str = "SameStep") -> None:
        super().__init__(num_envs, 5, mode)
        self._infos, self._fault = INFOS.get(infos, {}), final

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observations, infos = super().reset(seed=seed, options=options)
        return observations, infos | self._infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        *rest, infos = super().step(actions)
        if "final_obs" in infos and self._fault and not in_probe():
            infos |= _FINALS[self._fault](infos.pop("final_obs"))
        return *rest, infos | self._infos  # type: ignore[return-value]
