"""Agents in Python for tests; `sample_agents-1.0.dist-info` beside this file registers them as installed."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from charges import go_off, hang
from gymnasium import Space
from odd_errors import TEXTS, raise_odd

Columns = Mapping[str, np.ndarray]
NAMES = ("no", "factory")


class Still:
    """An agent whose action is always 0, for a Discrete space."""

    def __init__(self, observation_space: Space[Any], action_space: Space[Any]) -> None:
        self.observation_space = observation_space

    def set_parameters(self, parameters: Columns) -> None:
        self.parameters = parameters

    def initial_states(self) -> Columns:
        return {}

    def act(self, observations: Any, noise: np.ndarray, states: Columns) -> Any:
        return np.zeros(len(noise), np.int64), {}, {}


class Matrix(Still):
    """An agent that samples from two logits by adding noise; the logits come from plain matrix products."""

    noise_width = 2

    def act(self, observations: np.ndarray, noise: np.ndarray, states: Columns) -> Any:
        logits = np.tanh(observations @ self.parameters["first"]) @ self.parameters["second"]
        return (logits + noise).argmax(axis=1), {"logits": logits}, {}


class Masked(Still):
    """An agent that takes the first legal action after a random one, and shows the mask.

    Arguments:
        observation_space: observation space of the environment.
        action_space: Discrete action space of the environment.
        asks: whether the agent asks for the mask; otherwise it takes the first action.
    """

    noise_width = 1

    def __init__(self, observation_space: Space[Any], action_space: Any, *, asks: bool = True) -> None:
        super().__init__(observation_space, action_space)
        self._num_actions, self._start = int(action_space.n), int(action_space.start)
        if asks:
            self.agent_inputs = ["action_mask"]

    def act(self, observations: Any, noise: np.ndarray, states: Columns, inputs: Columns | None = None) -> Any:
        if inputs is None:
            return np.full(len(noise), self._start), {}, {}
        legal = inputs["action_mask"]
        assert legal.any(axis=1).all()
        shifts = (np.abs(noise) * 100).astype(int) % self._num_actions
        order = (shifts + np.arange(self._num_actions)) % self._num_actions
        first = np.take_along_axis(legal, order, axis=1).argmax(axis=1)
        return self._start + order[np.arange(len(noise)), first], {"num_legal": legal.sum(axis=1)}, {}


class MaskedParts(Still):
    """An agent that takes the last legal values of the Tuple action of `sample_envs:MaskedParts`.

    Arguments:
        observation_space: observation space of the environment.
        action_space: its action space.
        heeds: whether the bits are legal; otherwise they are zeros.
    """

    agent_inputs = ("action_mask",)

    def __init__(self, observation_space: Space[Any], action_space: Any, *, heeds: bool = True) -> None:
        super().__init__(observation_space, action_space)
        self._heeds = heeds

    def act(self, observations: Any, noise: np.ndarray, states: Columns, inputs: Columns | None = None) -> Any:
        assert inputs is not None
        legal = inputs["action_mask"]  # of the three values of leaf 0, then of the two of each bit of leaf 2
        turn = 2 - legal[:, 2::-1].argmax(axis=1)
        bits = legal[:, 4::2] if self._heeds else np.zeros((len(legal), 2))
        return {"0": turn, "1": np.zeros((len(legal), 1), np.float32), "2": bits.astype(np.int8)}, {}, {}


class Nested(Still):
    """An agent for `sample_envs:Nested`, with actions and infos of several types, and one info as a list."""

    noise_width = 2

    def act(self, observations: Columns, noise: np.ndarray, states: Columns) -> Any:
        brightness = observations["image"].mean(axis=(1, 2))
        turn = ((observations["pose/1"] - 1) % 3).astype(np.uint8)
        infos = {"brightness": brightness.tolist(), "is_bright": brightness > 127}
        return {"push": np.tanh(noise), "turn": turn}, infos, {}


class Remembering(Nested):
    """`Nested` with the action and the reward of the step before as infos, and a state of its own.

    Arguments:
        observation_space: observation space of the environment.
        action_space: action space of the environment.
        agent_inputs: what the policy asks for.
    """

    def __init__(
        self,
        observation_space: Space[Any],
        action_space: Any,
        agent_inputs: Any = ("previous_action", "previous_reward"),
    ) -> None:
        super().__init__(observation_space, action_space)
        self.agent_inputs = agent_inputs

    def initial_states(self) -> Columns:
        return {"count": np.zeros((), np.int64)}

    def act(self, observations: Columns, noise: np.ndarray, states: Columns, inputs: Any = None) -> Any:
        actions, _, _ = super().act(observations, noise, states)
        assert set(states) == {"count"}
        before = {f"before_{name}": column for name, column in inputs["previous_action"].items()}
        infos = {**before, "before_reward": inputs["previous_reward"], "count": states["count"]}
        return actions, infos, {"count": states["count"] + 1}


class Normalizing(Still):
    """An agent whose info depends on all rows of a call."""

    def act(self, observations: np.ndarray, noise: np.ndarray, states: Columns) -> Any:
        normalized = observations - observations.mean(axis=0)
        return np.zeros(len(noise), np.int64), {"normalized": normalized}, {}


class Counting(Still):
    """An agent that counts its actions from a parameter on, and alternates them."""

    def initial_states(self) -> Columns:
        return {"count": self.parameters["first"], "sums": np.zeros((2, 3), np.float32)}

    def act(self, observations: np.ndarray, noise: np.ndarray, states: Columns) -> Any:
        count = states["count"] + 1
        sums = states["sums"] + observations[:, :1, np.newaxis]
        return count % 2, {"count": count}, {"count": count, "sums": sums}


class Valued(Still):
    """A policy whose value, in float64, is an observation's first number plus the number of actions before it."""

    def initial_states(self) -> Columns:
        return {"count": np.zeros(1)}

    def act(self, observations: np.ndarray, noise: np.ndarray, states: Columns) -> Any:
        value = observations[:, 0].astype(np.float64) + states["count"][:, 0]
        return np.zeros(len(noise), np.int64), {"value": value}, {"count": states["count"] + 1}


class Tunable(Still):
    """An agent whose action, and whose info's width, are settings; the info has the sum of a parameter."""

    def __init__(
        self, observation_space: Space[Any], action_space: Space[Any], action: int = 0, width: int = 1
    ) -> None:
        super().__init__(observation_space, action_space)
        if width < 1:
            raise ValueError("expected a width of at least 1")
        self._action, self._width = action, width

    def act(self, observations: Any, noise: np.ndarray, states: Columns) -> Any:
        actions = np.full(len(noise), self._action, np.int64)
        return actions, {"sum": np.full((len(noise), self._width), self.parameters["scale"].sum())}, {}


class Reading(Still):
    """A policy that answers texts: the number of their characters, modulo 3; `length` has it as an info."""

    def act(self, observations: Any, noise: np.ndarray, states: Columns) -> Any:
        codes = observations["said/0"] if isinstance(observations, Mapping) else observations
        lengths = np.count_nonzero(codes, axis=1)
        return lengths % 3, {"length": lengths}, {}


class Faulty(Still):
    """An agent with one fault.

    Arguments:
        observation_space: observation space of the environment.
        action_space: action space of the environment.
        fault: name of the fault. `ERROR in METHOD` raises an error of `odd_errors` in `act`, `parameters`, `states` or
            `making`; with ` later`, only in a worker and not in the sandbox.
    """

    def __init__(self, observation_space: Space[Any], action_space: Space[Any], fault: str) -> None:
        super().__init__(observation_space, action_space)
        if fault == "factory":
            raise ValueError("not today")
        if fault == "recursion":
            self._recur()
        if fault == "made in a worker" and _is_worker():
            raise ValueError("not in a worker")
        self.fault = fault
        self.num_calls = 0
        self._raise("making")
        if fault == "methods":
            self.act = None  # type: ignore[assignment]
        if fault == "noise":
            self.noise_width = -1

    def _recur(self) -> None:
        self._recur_again()

    def _recur_again(self) -> None:
        self._recur()

    def _raise(self, where: str) -> None:
        error, _, place = self.fault.partition(" in ")
        if error in TEXTS and (place == where or (place == f"{where} later" and _is_worker())):
            raise_odd(error)

    def set_parameters(self, parameters: Columns) -> None:
        self._raise("parameters")
        if "wrong" in parameters:
            raise ValueError("wrong: what is this?")

    def initial_states(self) -> Columns:
        self._raise("states")
        return {"names": np.array(["a"])} if self.fault == "states" else {}

    def act(self, observations: np.ndarray, noise: np.ndarray, states: Columns) -> Any:
        actions, infos = np.zeros(len(noise), np.int64), {"value": observations[:, 2].copy()}
        self.num_calls += 1
        self._raise("act")
        falling = np.abs(observations[:, 2]) > 0.1  # the pole of CartPole
        faults: dict[str, Callable[[], Any]] = {
            "shape": lambda: (actions[:, np.newaxis], infos, {}),
            "dtype": lambda: (actions.astype(np.float64), infos, {}),
            "list": lambda: [actions, infos],
            "infos": lambda: (actions, 3, {}),
            "texts": lambda: (actions, {"name": ["x"] * len(actions)}, {}),
            "next states": lambda: (actions, infos, {"x": actions}),
            "rows": lambda: (actions, {"all": np.tile(observations, (1, len(noise)))}, {}),
            "random": lambda: (np.random.default_rng().integers(0, 2, len(noise)), infos, {}),
            "remembers": lambda: (actions, {"calls": actions + self.num_calls}, {}),
            "raises": lambda: {}["nothing"],
            "dies": lambda: os._exit(3),
            "hangs": lambda: time.sleep(600),
            "hoards": lambda: np.ones(1 << 38),
            "nan later": lambda: (actions, {"value": np.where(falling, np.nan, infos["value"])}, {}),
            "no action later": lambda: (actions + 7 * falling, infos, {}),
            "raises later": lambda: {}["nothing"] if falling.any() and _is_worker() else (actions, infos, {}),
        }
        return faults.get(self.fault, lambda: (actions, infos, {}))()


class Hanging(Still):
    """An agent that hangs once for each charge in a folder: at construction (`agent`) or in `act` (`action`)."""

    def __init__(self, observation_space: Space[Any], action_space: Space[Any], folder: str) -> None:
        super().__init__(observation_space, action_space)
        self._folder = folder
        if _is_worker() and go_off(folder, "agent"):
            hang()

    def act(self, observations: Any, noise: np.ndarray, states: Columns) -> Any:
        if _is_worker() and go_off(self._folder, "action"):
            hang()
        return super().act(observations, noise, states)


class Awaited(Still):
    """An agent for CartPole-v1 whose trial adds name and process to `tried` in a folder, and waits for `go` there."""

    def __init__(self, observation_space: Space[Any], action_space: Space[Any], folder: str, name: str) -> None:
        super().__init__(observation_space, action_space)
        if not _is_worker():
            with Path(folder, "tried").open("a") as file:
                file.write(f"{name} {os.getpid()}\n")
            while not Path(folder, "go").exists():
                time.sleep(0.01)
        assert observation_space.shape == (4,)


def _is_worker() -> bool:
    """Whether this process is a worker and no sandbox."""
    return "rollserve_server.sampling.worker" in sys.modules


def recorded(path: str) -> Callable[[Space[Any], Space[Any]], Still]:
    """Append the id of this process to a file, and return a factory; pickles call this when they are loaded."""
    with Path(path).open("a") as file:
        file.write(f"{os.getpid()}\n")
    return Still
