"""Environments for tests, each with one trait."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Nested(gymnasium.Env[Any, Any]):
    """Observations and actions of all kinds of spaces, and infos of all kinds of shapes."""

    def __init__(self, length: int = 5) -> None:
        self.observation_space = spaces.Dict(
            {
                "image": spaces.Box(0, 255, (3, 2), np.uint8),
                "pose": spaces.Tuple((spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(4, start=1))),
                "switches": spaces.MultiBinary(3),
                "counts": spaces.MultiDiscrete([3, 5]),
            }
        )
        self.action_space = spaces.Dict({"turn": spaces.Discrete(3), "push": spaces.Box(-1, 1, (2,), np.float32)})
        self._length = length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self._step = 0
        return self.observation_space.sample(), {"seed": seed, "name": "nested"}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self._step += 1
        infos: dict[str, Any] = {
            "step": self._step,
            "vector": np.full(2, self._step, np.float32),
            "inner": {"push": float(action["push"][0])},
            "text": "dropped",
            "ragged": np.zeros(self._step),
        }
        if self._step == self._length:
            infos["success"] = True
        return self.observation_space.sample(), float(action["turn"]), self._step >= self._length, False, infos


class Ends(gymnasium.Env[np.ndarray, int]):
    """Ends after so many steps, in the way that the arguments say. Rewards tell the step, observations the action."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(8)

    def __init__(self, length: int = 3, terminated: bool = True, truncated: bool = False) -> None:
        self._length, self._terminated, self._truncated = length, terminated, truncated

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        return np.array([-1, 0], np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        over = self._step == self._length
        observation = np.array([action, self._step], np.float32)
        return observation, self._step, over and self._terminated, over and self._truncated, {}


class NoNumbers(Ends):
    """Shows NaN after so many steps, and goes on."""

    def __init__(self, after: int = 3) -> None:
        super().__init__(length=100)
        self._after = after

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, *rest = super().step(action)
        if self._step == self._after:
            observation[1] = np.nan
        return observation, *rest


class Big(gymnasium.Env[np.ndarray, int]):
    """Large observations that cost next to nothing: each is full of the number of its step."""

    action_space = spaces.Discrete(2)

    def __init__(self, observation_bytes: int = 1 << 20, length: int = 10) -> None:
        self.observation_space = spaces.Box(0, 255, (observation_bytes,), np.uint8)
        self._length = length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        return self._observation(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        return self._observation(), 0.0, False, self._step >= self._length, {}

    def _observation(self) -> np.ndarray:
        return np.full(self.observation_space.shape, self._step % 251, np.uint8)


class Failing(gymnasium.Env[np.ndarray, int]):
    """Raises where the arguments say: at construction, at a reset, or at a step."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, at: str = "step") -> None:
        if at == "construction":
            raise RuntimeError("broken by design")
        self._at = at

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if self._at == "reset":
            raise RuntimeError("broken by design")
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        raise RuntimeError("broken by design")


class Deadly(gymnasium.Env[np.ndarray, int]):
    """Takes its process with it after a while."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps_left = 100
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps_left -= 1
        if not self._steps_left:
            os.kill(os.getpid(), signal.SIGKILL)
        return np.zeros(1, np.float32), 0.0, False, False, {}


class FailsForSomeSeeds(gymnasium.Env[np.ndarray, int]):
    """Raises in one of eight episodes, always in the same ones."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._fails = bool(self.np_random.integers(8) == 0)
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._fails:
            raise RuntimeError("broken by design")
        return np.zeros(1, np.float32), 1.0, True, False, {}


class OneOrThousand(gymnasium.Env[np.ndarray, int]):
    """Ends after one step or after a thousand, with equal chance."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._left = 1 if self.np_random.random() < 0.5 else 1000
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._left -= 1
        return np.zeros(1, np.float32), 1.0, self._left == 0, False, {}


class Ragged(gymnasium.Env[np.ndarray, int]):
    """Each episode has a length of its own, of which it is a function of its seed. Ends in both ways by turns."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Discrete(3, start=2)

    def __init__(self, most: int = 12) -> None:
        self._most = most

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._length = int(self.np_random.integers(1, self._most, endpoint=True))
        self._state, self._step = float(self.np_random.random()), 0
        return self._observation(), {"length": self._length}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self._step += 1
        self._state = self._state / 2 + float(action) + float(self.np_random.random())
        over = self._step == self._length
        infos = {"square": self._step**2} if self._step % 3 == 0 else {}
        return self._observation(), self._state, over and self._length % 2 == 0, over and self._length % 2 == 1, infos

    def _observation(self) -> np.ndarray:
        return np.array([self._state, self._step])


class Unseeded(gymnasium.Env[np.ndarray, int]):
    """Draws from a generator that no reset seeds."""

    observation_space = spaces.Box(0, 1, (1,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self._generator = np.random.default_rng()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._observation(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._observation(), 1.0, bool(self.np_random.random() < 0.1), False, {}

    def _observation(self) -> np.ndarray:
        return self._generator.random(1)


class Clock(Unseeded):
    """Shows the time."""

    observation_space = spaces.Box(0, np.inf, (1,), np.float64)

    def _observation(self) -> np.ndarray:
        return np.array([time.time()])


class ForgetsItsLength(gymnasium.Env[np.ndarray, int]):
    """The first episode of each copy for long, the others, which nobody expects, end after a hundred steps."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self._length, self._step = 1000, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if self._step >= 100:
            self._length = 100
        self._step = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        return np.zeros(1, np.float32), 1.0, self._step == self._length, False, {}


class Curriculum(Unseeded):
    """Gets harder with each episode."""

    observation_space = spaces.Box(0, np.inf, (1,), np.float64)

    def __init__(self) -> None:
        self._num_episodes = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._num_episodes += 1
        return super().reset(seed=seed)

    def _observation(self) -> np.ndarray:
        return np.array([float(self._num_episodes)])


class Tasks(gymnasium.Env[np.ndarray, int]):
    """Can be set to a task. Shows its size, its task and an option of its reset; infos tell which of all made it is."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = spaces.Discrete(2)
    num_made = 0

    def __init__(self, size: int = 1) -> None:
        Tasks.num_made += 1
        self._number = Tasks.num_made
        self._size, self._task = size, 0

    def set_task(self, task: Any) -> None:
        if task["goal"] < 0:
            raise ValueError("a goal of at least 0 was expected")
        self._task = task.pop("goal")

    def set_other_task(self, task: Any) -> None:
        self._other_task = task

    def set_task_for_admins(self, task: Any) -> None:
        self._task = 1000

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._start = (options or {}).pop("start", 0)
        return self._observation(), {"number": self._number}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._observation(), 1.0, True, False, {}

    def _observation(self) -> np.ndarray:
        return np.array([self._size, self._task, self._start], np.float32)


class Slow(gymnasium.Env[np.ndarray, int]):
    """Takes its time for each step."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, step_seconds: float = 0.1, length: int = 10) -> None:
        self._step_seconds, self._length = step_seconds, length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(self._step_seconds)
        self._step += 1
        return np.zeros(1, np.float32), 1.0, False, self._step >= self._length, {}


class Shapes(gymnasium.Env[np.ndarray, int]):
    """An info whose shape differs from episode to episode, and one whose dtype does."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._size = int(self.np_random.integers(1, 3))
        self._step = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        value = 1 if self._size == 1 else 0.5
        infos = {"shape": np.ones(self._size), "dtype": value}
        return np.zeros(1, np.float32), float(self._size), self._step == 2, False, infos


class WrongObservation(gymnasium.Env[np.ndarray, int]):
    """Shows something else than its space says."""

    observation_space = spaces.Box(-1, 1, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(1, np.float32), {}


class Unsupported(gymnasium.Env[Any, int]):
    """Has a space that cannot be sampled."""

    observation_space = spaces.Text(5)
    action_space = spaces.Discrete(2)


class Refusing(gymnasium.Env[Any, int]):
    """Says no in the words of whoever asks."""

    def __init__(self, text: str) -> None:
        raise RuntimeError("".join(chr(int(part, 16)) for part in text.split()))


class Spaceless(gymnasium.Env[Any, int]):
    """Has forgotten to say what it shows."""

    action_space = spaces.Discrete(2)


class OddlyNamed(gymnasium.Env[Any, int]):
    """Has a part whose name is no Unicode."""

    observation_space = spaces.Dict({"\ud800": spaces.Discrete(2)})
    action_space = spaces.Discrete(2)


class Switches(gymnasium.Env[np.ndarray, np.ndarray]):
    """Takes small integers, and floats of single precision."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Dict({"on": spaces.MultiBinary(2), "force": spaces.Box(-np.inf, np.inf, (), np.float32)})


class ManyActions(gymnasium.Env[np.ndarray, np.ndarray]):
    """Takes several numbers at once; the reward is their sum, in ten steps."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, kind: str) -> None:
        self.action_space = spaces.MultiBinary(3) if kind == "MultiBinary" else spaces.MultiDiscrete([2, 3, 4])
        self._num_steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._num_steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self._num_steps += 1
        return np.zeros(2, np.float32), float(action.sum()), self._num_steps == 10, False, {}


class Talkative(gymnasium.Env[np.ndarray, int]):
    """Prints."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        print("\x1b[31mhello\x1b[0m from the environment")  # noqa: T201
        print("a complaint", file=sys.stderr)  # noqa: T201


class Recall(gymnasium.Env[int, int]):
    """Shows 1 or 2 in the first step only, and rewards the action that is one less in the last of a few steps."""

    observation_space = spaces.Discrete(3)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self._cue = int(self.np_random.integers(1, 3))
        self._steps_left = int(self.np_random.integers(2, 12))
        return self._cue, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self._steps_left -= 1
        over = self._steps_left == 0
        return 0, float(over and action == self._cue - 1), over, False, {}


class NotAnEnvironment:
    """Is none."""


gymnasium.register("Nested-v0", Nested)
NOT_AN_ENVIRONMENT = 3


class CoinRows(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Episodes of one step or of many, with equal chance: its rows toss coins from one purse.

    An observation tells the episode's length and the steps made; each step's infos tell how many are left.
    """

    def __init__(
        self,
        num_envs: int,
        num_steps: int = 1000,
        mode: str = "NextStep",
        fails_after: int = 1 << 60,
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
        if self._fails_after < 0:
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


gymnasium.register("Coins-v0", vector_entry_point=CoinRows)


class ScreenRows(CoinRows):
    """The same with stacks of three screens of 1 KiB, lit as the length and the steps made say."""

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


gymnasium.register("ScreenRows-v0", vector_entry_point=ScreenRows)


class InfoRows(CoinRows):
    """Coins whose rows tell all kinds of things, of which not all go into columns."""

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


gymnasium.register("Infos-v0", vector_entry_point=InfoRows)


class UnlimitedCoinRows(CoinRows):
    """Takes no limit of the length of episodes."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs, num_steps=30)


gymnasium.register("UnlimitedCoins-v0", OneOrThousand, vector_entry_point=UnlimitedCoinRows)


class Screens(gymnasium.Env[Any, Any]):
    """Screens of 1 KiB with a few lit points, and, if they are nested, numbers beside them."""

    action_space = spaces.Discrete(5)

    def __init__(self, length: int = 40, nested: bool = False) -> None:
        self._length, self._nested = length, nested
        self._screen = spaces.Box(0, 255, (16, 64), np.uint8)
        numbers = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.observation_space = spaces.Dict(screen=self._screen, numbers=numbers) if nested else self._screen

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        return self._observation(0), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        # Some episodes are short, so that messages have many segments.
        length = self._length if self.np_random_seed is None or self.np_random_seed % 3 else 2
        return self._observation(action), float(action), self._step == length, False, {}

    def _observation(self, action: int) -> Any:
        screen = np.zeros(self._screen.shape, np.uint8)
        screen.flat[self.np_random.integers(0, screen.size, 5)] = 1 + action
        return {"screen": screen, "numbers": np.full(3, self._step, np.float32)} if self._nested else screen
