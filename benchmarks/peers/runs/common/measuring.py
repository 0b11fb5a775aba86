"""What all runs share: environments, a policy in numpy, columns on the trainer's side, and the clock."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["HIDDEN_SIZES", "Collecting", "TrainerSide", "envs", "one_env", "run"]

Collecting = Callable[..., AbstractContextManager[Callable[[], int]]]
"""With a workload and settings: sets a peer up for as long as a block runs, and gives what brings the next data.

That returns of how many steps the trainer's process has all arrays then.
"""

HIDDEN_SIZES = (64, 64)
_NUM_ACTIONS = {"w1": 2, "w3": 6}
_NUM_COLUMN_STEPS = 64
_NUM_WARM_UP_DELIVERIES = 3
_LEAST_DELIVERIES = 6
_WARM_UP_SHARE = 0.5


def one_env(workload: str) -> Any:
    """The environment of a workload."""
    import gymnasium

    match workload:
        case "w1":
            return gymnasium.make("CartPole-v1")
        case "w2":
            # The same but for what it may be told, with a gymnasium before 1.0.
            return gymnasium.make("HalfCheetah-v5" if "HalfCheetah-v5" in gymnasium.registry else "HalfCheetah-v4")
        case "w3":
            import ale_py

            gymnasium.register_envs(ale_py)
            env = gymnasium.wrappers.AtariPreprocessing(gymnasium.make("ALE/Pong-v5", frameskip=1))
            return gymnasium.wrappers.FrameStackObservation(env, 4)
        case _:
            raise ValueError(f"{workload!r} came, w1, w2 or w3 was expected")


def envs(workload: str, number: int) -> list[Callable[[], Any]]:
    """What makes so many environments, each of its own."""
    return [partial(one_env, workload)] * number


class _Mlp:
    """A policy of two hidden layers, in float32, with noise that is drawn for many steps at once."""

    def __init__(self, num_rows: int, num_inputs: int, num_outputs: int, *, categorical: bool) -> None:
        self._generator = np.random.default_rng(0)
        self._categorical = categorical
        sizes = (num_inputs, *HIDDEN_SIZES, num_outputs)
        scales = [1 / math.sqrt(size) for size in sizes[:-2]] + [0.01]
        self._weights = [
            (scale * self._generator.standard_normal((inputs, outputs))).astype(np.float32)
            for scale, inputs, outputs in zip(scales, sizes[:-1], sizes[1:], strict=True)
        ]
        self._biases = [np.zeros(size, np.float32) for size in sizes[1:]]
        self._input = np.empty((num_rows, num_inputs), np.float32)
        self._layers = [np.empty((num_rows, size), np.float32) for size in sizes[1:]]
        self._noise = np.empty((_NUM_COLUMN_STEPS, num_rows, 1 if categorical else num_outputs), np.float32)
        self._step = _NUM_COLUMN_STEPS

    def __call__(self, observations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Actions, drawn from what the network gives for each row, and their log-probabilities."""
        self._input[...] = observations
        layer = self._input
        for weight, bias, out in zip(self._weights, self._biases, self._layers, strict=True):
            np.matmul(layer, weight, out=out)
            np.add(out, bias, out=out)
            layer = out if out is self._layers[-1] else np.tanh(out, out=out)
        noise = self._next_noise()
        return self._drawn(layer, noise) if self._categorical else self._deviated(layer, noise)

    def _next_noise(self) -> np.ndarray:
        if self._step == _NUM_COLUMN_STEPS:
            draw = self._generator.random if self._categorical else self._generator.standard_normal
            draw(dtype=np.float32, out=self._noise)
            self._step = 0
        self._step += 1
        return self._noise[self._step - 1]

    def _drawn(self, output: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        log_probs = output - output.max(axis=1, keepdims=True)
        log_probs -= np.log(np.exp(log_probs).sum(axis=1, keepdims=True))
        actions = (np.cumsum(np.exp(log_probs), axis=1)[:, :-1] <= noise).sum(axis=1)
        return actions, np.take_along_axis(log_probs, actions[:, np.newaxis], axis=1)[:, 0]

    def _deviated(self, output: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        log_probs = np.float32(-0.5) * np.square(noise).sum(axis=1)
        log_probs -= np.float32(0.5 * noise.shape[1] * math.log(2 * math.pi))
        return output + noise, log_probs


class TrainerSide:
    """Acts in rows that are stepped together, and keeps what comes of it in columns, as a trainer would.

    Of rows that take a step to begin anew after an episode, that step does not count.
    """

    def __init__(self, workload: str, observations: np.ndarray) -> None:
        num_rows = len(observations)
        self._generator = np.random.default_rng(0)
        self._num_actions = _NUM_ACTIONS.get(workload, 0)
        self._policy = None
        if workload != "w3":
            num_outputs = self._num_actions or 6
            self._policy = _Mlp(num_rows, observations.shape[1], num_outputs, categorical=workload == "w1")
        self._num_rows = num_rows
        self._columns: dict[str, np.ndarray] = {}
        self._step = 0

    def act(self, observations: np.ndarray) -> np.ndarray:
        """(M,) or (M, *A): actions for (M, *O), which are kept."""
        if self._policy is None:
            actions = self._generator.integers(0, self._num_actions, self._num_rows)
            self._keep(observations=observations, actions=actions)
        else:
            actions, log_probs = self._policy(observations)
            self._keep(observations=observations, actions=actions, log_probs=log_probs)
        return actions

    def keep(self, rewards: np.ndarray, terminated: np.ndarray, truncated: np.ndarray) -> int:
        """Keeps what came of the actions; returns how many steps count."""
        self._keep(rewards=rewards, terminated=terminated, truncated=truncated)
        self._step = (self._step + 1) % _NUM_COLUMN_STEPS
        return self._num_rows - int(np.count_nonzero(terminated | truncated))

    def _keep(self, **values: np.ndarray) -> None:
        for name, value in values.items():
            if name not in self._columns:
                self._columns[name] = np.empty((_NUM_COLUMN_STEPS, *value.shape), value.dtype)
            self._columns[name][self._step] = value


def run(collecting: Collecting, packages: Iterable[str]) -> None:
    """Does what the command line says, and prints what came of it as a line of JSON."""
    workload, seconds, settings = sys.argv[1], float(sys.argv[2]), json.loads(sys.argv[3])
    output = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # for what else is printed
    with collecting(workload, **settings) as collect:
        _collect_for(collect, seconds * _WARM_UP_SHARE, _NUM_WARM_UP_DELIVERIES)
        num_steps, taken = _collect_for(collect, seconds, _LEAST_DELIVERIES)
        report = {
            "steps": num_steps,
            "seconds": taken,
            "settings": settings,
            "versions": _versions(("numpy", *packages)),
            "trainer_peak_bytes": _peak_bytes(os.getpid()),
            "all_peak_bytes": sum(map(_peak_bytes, _own_processes())),
        }
        print(json.dumps(report), file=output, flush=True)


def _collect_for(collect: Callable[[], int], seconds: float, num_deliveries: int) -> tuple[int, float]:
    """Collects at least so long, and at least so often something; returns how many steps in how many seconds.

    Ends with a delivery. Where data comes when it is ready, calls may bring none.
    """
    num_steps = deliveries = 0
    began = now = time.perf_counter()
    while deliveries < num_deliveries or now - began < seconds:
        came = collect()
        if came:
            num_steps += came
            deliveries += 1
            now = time.perf_counter()
    return num_steps, now - began


def _versions(packages: Iterable[str]) -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions


def _own_processes() -> list[int]:
    """This process and all below it."""
    parents: dict[int, int] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(status.parent.name)] = int(status.read_text().rpartition(")")[2].split()[1])
    found = [os.getpid()]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def _peak_bytes(pid: int) -> int:
    """The most that was ever resident of a process."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0
