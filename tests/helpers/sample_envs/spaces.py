"""Environments with particular spaces."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from charges import in_probe
from every_space import EVERY_SPACE, own_classes
from gymnasium import spaces


class Nested(gymnasium.Env[Any, Any]):
    """Observations and actions of several kinds of spaces, and infos of several shapes."""

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


class EverySpace(gymnasium.Env[Any, int]):
    """Observations of every space that gymnasium makes, by number, and of spaces of classes that only it has."""

    observation_space = spaces.Dict({str(number): space for number, space in enumerate(EVERY_SPACE)} | own_classes())
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return _lowest(self.observation_space), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return _lowest(self.observation_space), 0.0, True, False, {}


def _lowest(space: spaces.Space[Any]) -> Any:
    """Return a value of a space."""
    match space:
        case spaces.Dict():
            return {key: _lowest(part) for key, part in space.spaces.items()}
        case spaces.Tuple():
            return tuple(map(_lowest, space.spaces))
        case spaces.Box():
            return space.low.copy()
        case spaces.Text():
            return space.characters[0] * space.max_length
        case spaces.MultiBinary():
            return np.zeros(space.shape, np.int8)
        case spaces.MultiDiscrete() | spaces.Discrete():
            return space.start
    raise TypeError(space)


class Switches(gymnasium.Env[np.ndarray, Any]):
    """Actions of 8-bit integers and of a float of single precision."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Dict({"on": spaces.MultiBinary(2), "force": spaces.Box(-np.inf, np.inf, (), np.float32)})

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return np.zeros(1, np.float32), 0.0, True, False, {}


class Hybrid(gymnasium.Env[np.ndarray, Any]):
    """Actions of all kinds in a Tuple, which determine observations and rewards, in episodes of 3 to 12 steps."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Tuple(
        (
            spaces.Discrete(3, start=1),
            spaces.Box(np.array([-2, 0], np.float32), np.array([2, 1], np.float32)),
            spaces.Dict({"bits": spaces.MultiBinary(2), "counts": spaces.MultiDiscrete([2, 4])}),
        )
    )

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps_left = int(self.np_random.integers(3, 13))
        self._sum = self.np_random.random()
        return self._observe(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        turn, push, switches = action
        self._sum += float(turn) + float(push.sum()) + int(switches["bits"].sum()) + int(switches["counts"].sum())
        self._steps_left -= 1
        return self._observe(), self._sum, self._steps_left == 0, False, {}

    def _observe(self) -> np.ndarray:
        return np.array([np.sin(self._sum), self._steps_left / 10], np.float32)


class ManyActions(gymnasium.Env[np.ndarray, np.ndarray]):
    """Actions of several numbers, whose sum is the reward, in episodes of 10 steps.

    Arguments:
        kind: kind of the action space: `MultiBinary` or `MultiDiscrete`.
    """

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


class Big(gymnasium.Env[np.ndarray, int]):
    """Large observations that cost almost nothing to make: each is filled with the number of its step, modulo 251."""

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


class Screens(gymnasium.Env[Any, Any]):
    """Observations of 1 KiB with a few lit points.

    Arguments:
        length: length of two of three episodes; the others have 2 steps.
        nested: whether there are numbers beside the screens.
    """

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


class Shapes(gymnasium.Env[np.ndarray, int]):
    """An info whose shape differs between episodes, and one whose dtype does."""

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


class OwnBounds(gymnasium.Env[np.ndarray, int]):
    """Observations whose elements have bounds of their own."""

    action_space = spaces.Discrete(2)

    def __init__(self, size: int) -> None:
        self.observation_space = spaces.Box(0, np.arange(1, size + 1, dtype=np.float32))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(self.observation_space.shape, np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(self.observation_space.shape, np.float32), 0.0, True, False, {}


class Talking(gymnasium.Env[Any, int]):
    """Texts beside numbers, or alone: of the seed, the number of the step, and the last action.

    Arguments:
        alone: whether an observation is a text.
        longest: number of characters of a text that the space does not have room for; 0 for none.
        characters: characters of the space.
    """

    action_space = spaces.Discrete(3)

    def __init__(self, alone: bool = False, longest: int = 0, characters: str = "abcxyz äß€😀") -> None:
        self._alone, self._longest = alone, longest
        text = spaces.Text(9, min_length=0, charset=characters)
        number = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.observation_space = text if alone else spaces.Dict({"step": number, "said": spaces.Tuple([text])})

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._step, self._last = 0, int(self.np_random.integers(1, 40))
        return self._observation(0), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        return self._observation(int(action)), 0.5, self._step == self._last, False, {}

    def _observation(self, action: int) -> Any:
        characters = list("xyz äß€😀")
        text = "abc"[action] + "".join(self.np_random.choice(characters, self.np_random.integers(0, 9)))
        if self._step % 5 == 4:
            text = "" if not self._longest or in_probe() else "x" * self._longest
        return text if self._alone else {"step": np.array([self._step], np.float32), "said": (text,)}


class Assorted(gymnasium.Env[Any, Any]):
    """Observations and actions whose values differ in size and kind, in episodes of 8 steps.

    Arguments:
        most: highest number of elements of a sequence or graph.
    """

    def __init__(self, most: int = 3) -> None:
        place = spaces.Box(np.float32([1, -2]), np.float32([2, 0]))
        thing = spaces.Dict({"kind": spaces.Discrete(3, start=1), "place": place})
        self.observation_space = spaces.Dict(
            {
                "graph": spaces.Graph(place, spaces.Discrete(4)),
                "one": spaces.OneOf([spaces.Discrete(4, start=-1), spaces.Text(5)]),
                "stack": spaces.Sequence(thing, stack=True),
                "things": spaces.Sequence(thing),
            }
        )
        self.action_space = spaces.Dict(
            {
                "moves": spaces.Sequence(spaces.Discrete(4, start=2)),
                "one": spaces.OneOf([place, spaces.Discrete(3)]),
                "path": spaces.Sequence(place, stack=True),
                "say": spaces.Text(4, min_length=1, charset="abc"),
            }
        )
        self._most = most

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self._num_steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self._num_steps += 1
        choice, chosen = action["one"]
        infos = {
            "moves": sum(map(int, action["moves"])),
            "num_moves": len(action["moves"]),
            "one": float(np.sum(chosen)),
            "path": float(np.sum(action["path"])),
            "num_said": len(action["say"]),
        }
        return self._observe(), float(choice), self._num_steps == 8, False, infos

    def _observe(self) -> Any:
        space: Any = self.observation_space
        kinds = space.spaces
        counts = self.np_random.integers(0, self._most, 4, endpoint=True).tolist()
        things, stacked = ([kinds["things"].feature_space.sample() for _ in range(count)] for count in counts[:2])
        stack = {
            "kind": np.array([thing["kind"] for thing in stacked], np.int64),
            "place": np.reshape([thing["place"] for thing in stacked], (-1, 2)).astype(np.float32),
        }
        num_nodes = max(counts[2], 1)
        graph = kinds["graph"].sample(num_nodes=num_nodes, num_edges=counts[3] if num_nodes > 1 else 0)
        return {"graph": graph, "one": kinds["one"].sample(), "stack": stack, "things": tuple(things)}


class Varying(gymnasium.Env[Any, Any]):
    """Observations or actions whose values differ in size or kind.

    Arguments:
        kind: `Text`, `Sequence`, `Graph` or `OneOf`.
        actions: whether actions are of this kind, instead of observations.
        nested: whether the space is a part of another one.
    """

    def __init__(self, kind: str, actions: bool = False, nested: bool = False) -> None:
        box = spaces.Box(-1, 1, (2,), np.float32)
        kinds = {
            "Text": spaces.Text(5),
            "Sequence": spaces.Sequence(box),
            "Graph": spaces.Graph(box, spaces.Discrete(3)),
            "OneOf": spaces.OneOf((box, spaces.Discrete(3))),
        }
        varying: spaces.Space[Any] = kinds[kind]
        if nested:
            varying = spaces.Dict({"say": spaces.Tuple([spaces.Discrete(2), varying])})
        self.observation_space, self.action_space = spaces.Discrete(2), varying
        if not actions:
            self.observation_space, self.action_space = self.action_space, self.observation_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), 0.0, True, False, {}


class Spaceless(gymnasium.Env[Any, int]):
    """An environment without an observation space."""

    action_space = spaces.Discrete(2)


class OddlyNamed(gymnasium.Env[Any, int]):
    """An observation space with a leaf whose name is a lone surrogate."""

    observation_space = spaces.Dict({"\ud800": spaces.Discrete(2)})
    action_space = spaces.Discrete(2)


class WrongObservation(gymnasium.Env[np.ndarray, int]):
    """Observations of shape (1,) in a space of shape (3,), except when it is tried."""

    observation_space = spaces.Box(-1, 1, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(3 if in_probe() else 1, np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(3, np.float32), 0.0, True, False, {}


class NotAnEnvironment:
    """A class that is no environment."""


_INT64 = np.iinfo(np.int64)
_WIDE = spaces.Box(np.finfo(np.float64).min, np.finfo(np.float64).max, (2,), np.float64)

ODD_SPACES: dict[str, spaces.Space[Any]] = {
    "empty": spaces.Box(-1, 1, (0,), np.float32),
    "empty leaf": spaces.Dict({"none": spaces.Box(-1, 1, (2, 0), np.float32), "some": spaces.Box(-1, 1, (2,))}),
    "no leaf": spaces.Dict({}),
    "part without leaves": spaces.Tuple((spaces.Dict({}), spaces.Discrete(2), spaces.Tuple(()))),
    "positive int64": spaces.Box(0, _INT64.max, (2,), np.int64),
    "all of int64": spaces.Box(_INT64.min, _INT64.max, (2,), np.int64),
    "all of uint64": spaces.Box(0, np.iinfo(np.uint64).max, (2,), np.uint64),
    "all of float64": _WIDE,
    "wide part": spaces.Dict({"wide": _WIDE, "n": spaces.Discrete(2)}),
}
"""Spaces that gymnasium makes, and that it cannot sample from, or that have arrays without elements."""


class OddSpaces(gymnasium.Env[Any, Any]):
    """An environment with one of `ODD_SPACES` for observations or actions; checks its actions."""

    def __init__(self, kind: str, actions: bool = False) -> None:
        odd, plain = ODD_SPACES[kind], spaces.Discrete(2)
        self.observation_space, self.action_space = (plain, odd) if actions else (odd, plain)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self._observe(self.observation_space), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self._steps += 1
        return self._observe(self.observation_space), 1.0, self._steps == 5, False, {}

    def _observe(self, space: Any) -> Any:
        if isinstance(space, spaces.Dict):
            return {key: self._observe(part) for key, part in space.spaces.items()}
        if isinstance(space, spaces.Tuple):
            return tuple(map(self._observe, space.spaces))
        return np.int64(1) if isinstance(space, spaces.Discrete) else np.zeros(space.shape, space.dtype)


class Returns(gymnasium.Env[Any, int]):
    """Returns something odd in a reset or a step, in place of an observation with the leaves `a`, `b/0` and `b/1`.

    Arguments:
        odd: `no leaf`, `short tuple`, `none`, `array`, `shape`, `dtype`, `ragged`, `too large`, or the number of values
            of a reset or step.
        at: `reset` or `step`.
    """

    observation_space = spaces.Dict(
        {"a": spaces.Box(-1, 1, (2,), np.float32), "b": spaces.Tuple((spaces.MultiBinary(3), spaces.Discrete(4)))}
    )
    action_space = spaces.Discrete(2)

    def __init__(self, odd: str, at: str = "step") -> None:
        self._odd, self._at = odd, at

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        result = self._observe("reset"), {}
        return result if self._at != "reset" or not self._odd.isdigit() else (result * 3)[: int(self._odd)]

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._observe("step"), 1.0, True, False, {}

    def _observe(self, at: str) -> Any:
        observation: dict[str, Any] = {"a": np.zeros(2, np.float32), "b": (np.zeros(3, np.int8), 1)}
        if at != self._at:
            return observation
        match self._odd:
            case "no leaf":
                del observation["a"]
            case "short tuple":
                observation["b"] = observation["b"][:1]
            case "none":
                return None
            case "array":
                return np.zeros(2, np.float32)
            case "shape":
                observation["a"] = np.zeros((1, 2), np.float32)
            case "dtype":
                observation["a"] = np.zeros(2, np.complex64)
            case "ragged":
                observation["a"] = [[1.0], [1.0, 2.0]]
            case "too large":
                observation["b"] = (observation["b"][0], 10**400)
        return observation
