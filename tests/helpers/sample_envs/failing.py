"""Environments that raise, kill their process, take too much memory, or print."""

from __future__ import annotations

import os
import random
import resource
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from charges import go_off, in_probe
from gymnasium import spaces
from odd_errors import raise_odd

from sample_envs.lengths import Ends, Ragged


class Failing(gymnasium.Env[np.ndarray, int]):
    """Raises in its construction, each reset or each step, except when it is tried.

    Arguments:
        at: `construction`, `reset` or `step`.
    """

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, at: str = "step") -> None:
        if at == "construction":
            raise RuntimeError("broken by design")
        self._at = at

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if self._at == "reset" and not in_probe():
            raise RuntimeError("broken by design")
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if in_probe():
            return np.zeros(1, np.float32), 0.0, False, False, {}
        raise RuntimeError("broken by design")


class FailsForSomeSeeds(gymnasium.Env[np.ndarray, int]):
    """Raises in one of eight episodes, which the seed decides."""

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


class Odd(gymnasium.Env[np.ndarray, int]):
    """Raises an odd error in its construction, each reset, each step or its close, or shows odd infos.

    When it is tried, it raises in its construction alone.

    Arguments:
        error: name of the error, from `odd_errors.TEXTS`.
        at: `construction`, `reset`, `step`, `close`, `reset infos`, `step infos` or `nested`; otherwise nowhere.
        folder: folder whose file `closed` gets a byte for each environment that is closed; empty for none.
    """

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, error: str, at: str = "step", folder: str = "") -> None:
        self._error, self._at, self._folder = error, at, folder
        self._raise("construction")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._raise("reset")
        is_odd = self._at == "reset infos" and not in_probe()
        return np.zeros(1, np.float32), OddInfos(self._error) if is_odd else {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._raise("step")
        infos: Any = {"step infos": OddInfos(self._error), "nested": {"infos": OddInfos(self._error)}}
        return np.zeros(1, np.float32), 0.0, True, False, {} if in_probe() else infos.get(self._at) or {}

    def close(self) -> None:
        if self._folder:
            with Path(self._folder, "closed").open("ab") as file:
                file.write(b".")
        self._raise("close")

    def _raise(self, at: str) -> None:
        if self._at == at and (at == "construction" or not in_probe()):
            raise_odd(self._error)


class OddInfos(Mapping[str, Any]):
    """Infos that raise an odd error when they are iterated over."""

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


class Refusing(gymnasium.Env[Any, int]):
    """Raises at construction, with a text of any characters.

    Arguments:
        text: code points in hexadecimal, separated by blanks.
    """

    def __init__(self, text: str) -> None:
        raise RuntimeError("".join(chr(int(part, 16)) for part in text.split()))


class FourValues(Ends):
    """Episodes as of `Ends`; in one of four, the second step returns four values, as before Gym 0.26."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._made, self._is_old = 0, seed is not None and seed > 1000 and seed % 4 == 0
        return super().reset(seed=seed, options=options)

    def step(self, action: int) -> Any:
        self._made += 1
        outcome = super().step(action)
        return outcome[:4] if self._is_old and self._made == 2 else outcome


class Flaky(gymnasium.Env[np.ndarray, int]):
    """A random walk that raises in some episodes, without any effect on the walk.

    Arguments:
        folder: folder with the files that count how often each episode has raised.
        at: where it raises: `step`, `reset`, `close`, or `anywhere`, at random.
        one_in: episodes whose seed is a multiple of this raise; with `anywhere`, one of this many steps does.
        times: how often an episode raises before it succeeds; -1 for always.
        refusals: how many environments cannot be made after the first error.
        length: longest length of an episode.
        pure: whether the walk is a function of the seed and the actions.
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
        if refusals and os.path.exists(os.path.join(folder, "raised")) and is_among_first(folder, "refused", refusals):
            raise RuntimeError("refused by design")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._made, self._last = 0, int(self.np_random.integers(1, self._length + 1))
        self._place = self.np_random.standard_normal(3)
        # The seeds of a first look at the environment are small.
        self._is_first_look = seed is None or seed <= 1000
        self._name = str(seed) if seed is not None and not self._is_first_look and seed % self._one_in == 0 else ""
        self._raises_at = (seed or 0) // self._one_in % self._last
        self._maybe_raise("reset")
        return self._place.copy(), {"last": self._last}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._made == self._raises_at:
            self._maybe_raise("step")
        if self._at == "anywhere" and not self._is_first_look and random.randrange(self._one_in) == 0:
            raise RuntimeError("broken by design")
        self._made += 1
        self._place += (action - 0.5) * self.np_random.standard_normal(3)
        if not self._pure:
            self._place += random.random()
        return self._place.copy(), float(self._place[0]), self._made == self._last, False, {"made": self._made}

    def close(self) -> None:
        if self._at == "close":
            raise RuntimeError("broken by design")

    def _maybe_raise(self, at: str) -> None:
        if self._name and self._at in (at, "close") and is_among_first(self._folder, self._name, self._times):
            if self._folder:
                is_among_first(self._folder, "raised", 1)
            raise RuntimeError("broken by design")


class Licensed(Ends):
    """Episodes as of `Ends`; each worker needs a `license` of the folder, which it keeps, to make the first one."""

    def __init__(self, folder: str, length: int = 3) -> None:
        super().__init__(length)
        mine = Path(folder, f"worker {os.getpid()} {threading.current_thread().name}")
        if in_probe() and not [*Path(folder).glob("license.*"), *Path(folder).glob("worker *")]:
            raise FileNotFoundError("no license on this machine")
        if not (in_probe() or mine.exists()):
            if not go_off(folder, "license"):
                raise FileNotFoundError("no license on this machine")
            mine.touch()


class Deadly(gymnasium.Env[np.ndarray, int]):
    """Kills its process.

    Arguments:
        num_steps: number of steps of an episode before the kill; 0 to kill at construction, except when it is tried.
    """

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, num_steps: int = 100) -> None:
        self._num_steps = num_steps
        if not num_steps and not in_probe():
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


class EndsWorkersLater(Ends):
    """Ends its process although nothing runs in it: in its construction once a file is there, or by a signal.

    Arguments:
        file: the file.
        seconds: time after a step until the signal; 0 for none.
    """

    def __init__(self, file: str = "", seconds: float = 0.0) -> None:
        super().__init__()
        if file and Path(file).exists():
            os._exit(1)
        self._seconds = seconds

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self._seconds and not in_probe():
            signal.setitimer(signal.ITIMER_REAL, self._seconds)
        return super().step(action)


class Spoiling(Ends):
    """Spoils its process at its first step there.

    Arguments:
        how: `files`, so that it can open none any more; `maker` or `processes`, which break a library.
    """

    def __init__(self, how: str) -> None:
        super().__init__()
        self._how = how

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if not in_probe():
            if self._how == "files":
                _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
                resource.setrlimit(resource.RLIMIT_NOFILE, (3, most))
            elif self._how == "maker":
                gymnasium.make = None
            else:
                socket.socketpair = None  # type: ignore[assignment]
        return super().step(action)


class Greedy(Ragged):
    """Episodes as of `Ragged`; about one in eight takes 4 GiB of memory while a file exists.

    Arguments:
        flag: path of the file; removed before memory is taken, unless `goes_on`.
        group: folder of a control group, which the process joins before it takes memory.
        goes_on: whether the file stays.
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


class Talkative(Ends):
    """Episodes as of `Ends`; prints to both outputs at construction."""

    def __init__(self) -> None:
        super().__init__()
        print("\x1b[31mhello\x1b[0m from the environment")  # noqa: T201
        print("a complaint", file=sys.stderr)  # noqa: T201


def is_among_first(folder: str, name: str, times: int) -> bool:
    """Whether this call is among the first `times` with this name, over all processes; always for -1."""
    if times <= 0:
        return times < 0
    with open(os.path.join(folder, name), "ab") as file:
        return file.tell() < times and file.write(b".") > 0
