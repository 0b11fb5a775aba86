"""Environments for tests, each with one trait."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from charges import go_off, hang
from gymnasium import spaces
from odd_errors import raise_odd


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


class Odd(gymnasium.Env[np.ndarray, int]):
    """Raises an odd error where the arguments say: at its `construction`, a `reset`, a `step`, its `close`, or nowhere.

    Of each that is closed, a file in `folder` has a byte.
    """

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, error: str, at: str = "step", folder: str = "") -> None:
        self._error, self._at, self._folder = error, at, folder
        self._raise("construction")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._raise("reset")
        return np.zeros(1, np.float32), OddInfos(self._error) if self._at == "reset infos" else {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._raise("step")
        infos: Any = {"step infos": OddInfos(self._error), "nested": {"infos": OddInfos(self._error)}}
        return np.zeros(1, np.float32), 0.0, True, False, infos.get(self._at) or {}

    def close(self) -> None:
        if self._folder:
            with Path(self._folder, "closed").open("ab") as file:
                file.write(b".")
        self._raise("close")

    def _raise(self, at: str) -> None:
        if self._at == at:
            raise_odd(self._error)


class OddInfos(Mapping[str, Any]):
    """Raises an odd error when it is looked at."""

    def __init__(self, error: str) -> None:
        self._error = error

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, name: str) -> Any:
        raise KeyError(name)

    def __len__(self) -> int:
        return 0

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def keys(self) -> Any:
        raise_odd(self._error)

    def items(self) -> Any:
        raise_odd(self._error)


class Deadly(gymnasium.Env[np.ndarray, int]):
    """Takes its process with it after so many steps; for none, when it is made."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, num_steps: int = 100) -> None:
        self._num_steps = num_steps
        if not num_steps:
            os.kill(os.getpid(), signal.SIGKILL)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps_left = self._num_steps
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


class Watched(Ragged):
    """Takes its time for each step, and has a file of its own in a folder until it is closed."""

    def __init__(self, folder: str, step_seconds: float = 0.0, most: int = 12) -> None:
        super().__init__(most)
        self._seconds, self._file = step_seconds, Path(folder, f"{os.getpid()}.{uuid.uuid4().hex}")
        self._file.touch()

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(self._seconds)
        return super().step(action)

    def close(self) -> None:
        self._file.unlink(missing_ok=True)


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


class SlowInPlaces(gymnasium.Env[np.ndarray, int]):
    """Takes its time for each step in those workers that a file names, by their process or the name of their thread."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, path: str, step_seconds: float = 0.1, most_steps: int = 20) -> None:
        self._path, self._step_seconds, self._most_steps = Path(path), step_seconds, most_steps

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._left = int(self.np_random.integers(1, self._most_steps + 1))
        return self._observation(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        places = self._path.read_text().split()
        if {str(os.getpid()), threading.current_thread().name.partition("_")[0]}.intersection(places):
            time.sleep(self._step_seconds)
        self._left -= 1
        return self._observation(), float(action), self._left == 0, False, {}

    def _observation(self) -> np.ndarray:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)


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


class Flaky(gymnasium.Env[np.ndarray, int]):
    """A walk that is a function of its seed and its actions, and raises now and then, whatever the walk is.

    Arguments:
        at: where it raises: `step`, `reset`, `close`, or `anywhere`, at random.
        one_in: of so many seeds, it is one whose episodes raise; of so many steps, where it is at random.
        times: how often an episode raises before it goes well; -1 for always. Files in `folder` count that.
        refusals: how many environments cannot be made after the first that raised.
        length: the most steps of an episode.
        pure: whether the walk is such a function.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(
        self,
        folder: str = "",
        at: str = "step",
        one_in: int = 4,
        times: int = 0,
        refusals: int = 0,
        length: int = 12,
        pure: bool = True,
    ) -> None:
        self._folder, self._at, self._one_in, self._times = folder, at, one_in, times
        self._length, self._pure = length, pure
        if refusals and os.path.exists(os.path.join(folder, "raised")) and burns(folder, "refused", refusals):
            raise RuntimeError("refused by design")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._made, self._last = 0, int(self.np_random.integers(1, self._length + 1))
        self._place = self.np_random.standard_normal(3)
        # Small ones are those of a first look at the environment.
        self._is_look = seed is None or seed <= 1000
        self._name = str(seed) if seed is not None and not self._is_look and seed % self._one_in == 0 else ""
        self._raises_at = (seed or 0) // self._one_in % self._last
        self._burn("reset")
        return self._place.copy(), {"last": self._last}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._made == self._raises_at:
            self._burn("step")
        if self._at == "anywhere" and not self._is_look and random.randrange(self._one_in) == 0:
            raise RuntimeError("broken by design")
        self._made += 1
        self._place += (action - 0.5) * self.np_random.standard_normal(3)
        if not self._pure:
            self._place += random.random()
        return self._place.copy(), float(self._place[0]), self._made == self._last, False, {"made": self._made}

    def close(self) -> None:
        if self._at == "close":
            raise RuntimeError("broken by design")

    def _burn(self, at: str) -> None:
        if self._name and self._at in (at, "close") and burns(self._folder, self._name, self._times):
            if self._folder:
                burns(self._folder, "raised", 1)
            raise RuntimeError("broken by design")


def burns(folder: str, name: str, times: int) -> bool:
    """Whether this is one of the first so many times, in whichever process; always for -1."""
    if times <= 0:
        return times < 0
    with open(os.path.join(folder, name), "ab") as file:
        return file.tell() < times and file.write(b".") > 0


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


class FlakyCoinRows(CoinRows):
    """Coins of blocks of which some raise, as of Flaky; never before their fourth step."""

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
        self._burn("reset")
        return result

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        if self._num_made == self._raises_at:
            self._burn("step")
        if self._at == "anywhere" and random.randrange(self._one_in) == 0:
            raise RuntimeError("broken by design")
        self._num_made += 1
        return super().step(actions)

    def _burn(self, at: str) -> None:
        if self._name and self._at == at and burns(self._folder, self._name, self._times):
            raise RuntimeError("broken by design")


gymnasium.register("FlakyCoins-v0", vector_entry_point=FlakyCoinRows)


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


_QUICK_LOOK_SEEDS = (0, 1)
"""Of the episodes that a worker runs when it makes an environment."""


class Hanging(gymnasium.Env[np.ndarray, int]):
    """Random walks that hang at `construction`, `reset`, `step` or `native step` where a charge of that name lies."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self, folder: str) -> None:
        self._folder = folder
        if go_off(folder, "construction"):
            hang()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._is_looked_at = seed in _QUICK_LOOK_SEEDS
        if not self._is_looked_at and go_off(self._folder, "reset"):
            hang()
        self._steps_left = 5 + int(self.np_random.integers(0, 20))
        return self.np_random.random(1), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps_left -= 1
        if self._steps_left == 3 and not self._is_looked_at:
            if go_off(self._folder, "step"):
                hang()
            if go_off(self._folder, "native step"):
                hang(native=True)
        return self.np_random.random(1) + action, float(action), self._steps_left == 0, False, {}


class HangingRows(CoinRows):
    """Coins that hang at a `step`, all rows at once."""

    def __init__(self, num_envs: int, folder: str) -> None:
        super().__init__(num_envs, num_steps=30)
        self._folder = folder

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._is_looked_at = seed in _QUICK_LOOK_SEEDS
        return super().reset(seed=seed, options=options)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        if not self._is_looked_at and go_off(self._folder, "step"):
            hang()
        return super().step(actions)


gymnasium.register("HangingRows-v0", vector_entry_point=HangingRows)


class RaisingRows(CoinRows):
    """Coins that raise at a `step`, all rows at once, or when they are to be made, where a charge lies."""

    def __init__(self, num_envs: int, folder: str, max_episode_steps: int | None = None) -> None:
        super().__init__(num_envs, num_steps=5, mode="SameStep", max_episode_steps=max_episode_steps)
        if go_off(folder, "make"):
            raise RuntimeError("broken by design")
        self._folder = folder

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        if go_off(self._folder, "step"):
            raise RuntimeError("broken by design")
        return super().step(actions)


gymnasium.register("RaisingRows-v0", vector_entry_point=RaisingRows)


class OddRows(CoinRows):
    """Coins that raise an odd error, all rows at once: at a `construction`, a `reset`, a `step`, or their `close`."""

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
        if self._at == at:
            raise_odd(self._error)


gymnasium.register("OddRows-v0", vector_entry_point=OddRows)


class FourValues(Ends):
    """Gives four values for its second step, as environments once did, in one of four episodes."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._made, self._is_old = 0, seed is not None and seed > 1000 and seed % 4 == 0
        return super().reset(seed=seed, options=options)

    def step(self, action: int) -> Any:
        self._made += 1
        outcome = super().step(action)
        return outcome[:4] if self._is_old and self._made == 2 else outcome


class Licensed(Ends):
    """Can be made only on workers that got a `license`, each of which is for one of them."""

    def __init__(self, folder: str, length: int = 3) -> None:
        super().__init__(length)
        mine = Path(folder, f"worker {os.getpid()} {threading.current_thread().name}")
        if not mine.exists():
            if not go_off(folder, "license"):
                raise FileNotFoundError("no license on this machine")
            mine.touch()


class Greedy(Ragged):
    """Takes memory in every eighth episode or so: far more than a group of processes, which it joins first, may have.

    Only while a file is there, which it removes unless it is to go on.
    """

    def __init__(self, flag: str, group: str, goes_on: bool = False) -> None:
        super().__init__()
        self._flag, self._group, self._goes_on = Path(flag), Path(group), goes_on

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, infos = super().reset(seed=seed)
        if self._state < 1 / 8 and self._flag.exists():
            if not self._goes_on:
                self._flag.unlink()
            (self._group / "cgroup.procs").write_text(str(os.getpid()))
            taken = [np.ones(1 << 24, np.uint8) for _ in range(256)]
            del taken
        return observation, infos
