"""Spaces whose values differ in size or kind, as spaces of arrays of one shape."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from rollserve_wire.errors import mismatch

__all__ = ["FixedShapes"]

_MAX_ITEMS = 1 << 16


class FixedShapes(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose Sequence, Graph and OneOf spaces, and Text actions, have arrays of one shape.

    | space | becomes |
    |---|---|
    | Sequence | Dict of `items`, all behind each other, and their number `length` |
    | Graph | Dict of `nodes`, `num_nodes`, and if it has edges `edges`, `edge_links` (E, 2) and `num_edges` |
    | OneOf | Dict of `choice` and the alternatives `"0"`, `"1"` and so on; only the chosen one counts |
    | Text actions | MultiDiscrete, an index among `sorted(characters)` each; the number of characters ends the text |

    What lies behind the length, and alternatives that do not count, have a constant value of their space in
    observations, and are ignored in actions. Spaces in other spaces are converted alike.
    """

    def __init__(
        self, env: gymnasium.Env[Any, Any], max_items: int | None = None, max_edges: int | None = None
    ) -> None:
        """Wrap an environment.

        Args:
            env: environment.
            max_items: highest number of elements of a Sequence, and of nodes of a Graph.
            max_edges: highest number of edges of a Graph; by default `max_items`.

        Raises:
            TypeError: a number that is no integer.
            ValueError: a number below 1 or above 65,536, or none where it is needed; or actions of a Graph.
        """
        super().__init__(env)
        limits = {"max_items": max_items, "max_edges": max_items if max_edges is None else max_edges}
        for name, limit in limits.items():
            if limit is not None and not isinstance(limit, int):
                raise TypeError(f"{name}: {mismatch('an integer', repr(limit))}")
            if limit is not None and not 1 <= limit <= _MAX_ITEMS:
                raise ValueError(f"{name}: {mismatch(f'a number from 1 to {_MAX_ITEMS}', limit)}")
        self._observations = _form(env.observation_space, limits, is_action=False)
        self._actions = _form(env.action_space, limits, is_action=True)
        self.observation_space, self.action_space = self._observations.space, self._actions.space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment; return the observation of the converted space, and the info."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self._observations.fixed(observation), info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the environment.

        Raises:
            ValueError: an observation with more elements than there is room for.
        """
        observation, *rest = self.env.step(self._actions.original(action))
        return self._observations.fixed(observation), *rest


class _Form(ABC):
    """Values of a space in another form: arrays of one shape.

    Attributes:
        space: space of the other form.
    """

    space: spaces.Space[Any]

    @abstractmethod
    def fixed(self, value: Any) -> Any:
        """Return the other form of a value."""

    @abstractmethod
    def original(self, value: Any) -> Any:
        """Return the value that has this other form."""


class _Same(_Form):
    """Values that have one shape already."""

    def __init__(self, space: spaces.Space[Any]) -> None:
        self.space = space

    def fixed(self, value: Any) -> Any:
        return value

    def original(self, value: Any) -> Any:
        return value


class _Dict(_Form):
    """Values of a Dict space."""

    def __init__(self, parts: Mapping[str, _Form]) -> None:
        self._parts = parts
        self.space = spaces.Dict({name: part.space for name, part in parts.items()})

    def fixed(self, value: Any) -> Any:
        return {name: part.fixed(value[name]) for name, part in self._parts.items()}

    def original(self, value: Any) -> Any:
        return {name: part.original(value[name]) for name, part in self._parts.items()}


class _Tuple(_Form):
    """Values of a Tuple space."""

    def __init__(self, parts: Sequence[_Form]) -> None:
        self._parts = parts
        self.space = spaces.Tuple([part.space for part in parts])

    def fixed(self, value: Any) -> Any:
        return tuple(part.fixed(each) for part, each in zip(self._parts, value, strict=True))

    def original(self, value: Any) -> Any:
        return tuple(part.original(each) for part, each in zip(self._parts, value, strict=True))


class _Sequence(_Form):
    """Values of a Sequence space."""

    def __init__(self, space: spaces.Sequence, item: _Form, max_items: int) -> None:
        self._own, self._item = space, item
        self._batch = _Batch(item.space, max_items, "items", "max_items")
        self.space = spaces.Dict({"items": self._batch.space, "length": spaces.Discrete(max_items + 1)})

    def fixed(self, value: Any) -> Any:
        own = list(iterate(self._own.stacked_feature_space, value) if self._own.stack else value)
        return {"items": self._batch.of([self._item.fixed(item) for item in own]), "length": len(own)}

    def original(self, value: Any) -> Any:
        items = list(iterate(self._batch.space, value["items"]))[: int(value["length"])]
        own = tuple(self._item.original(item) for item in items)
        if not self._own.stack:
            return own
        room: Any = create_empty_array(self._own.feature_space, len(own))
        return concatenate(self._own.feature_space, own, room) if own else room


class _Graph(_Form):
    """Observations of a Graph space."""

    def __init__(self, space: spaces.Graph, max_nodes: int, max_edges: int) -> None:
        self._own = space
        self._nodes = _Batch(space.node_space, max_nodes, "nodes", "max_items")
        parts = {"nodes": self._nodes.space, "num_nodes": spaces.Discrete(max_nodes + 1)}
        if space.edge_space is not None:
            links = spaces.Box(0, max_nodes - 1, (2,), np.int64)
            self._edges = _Batch(space.edge_space, max_edges, "edges", "max_edges")
            self._links = _Batch(links, max_edges, "edge_links", "max_edges")
            parts |= {"edges": self._edges.space, "edge_links": self._links.space}
            parts["num_edges"] = spaces.Discrete(max_edges + 1)
        self.space = spaces.Dict(parts)

    def fixed(self, value: Any) -> Any:
        own, nodes = self._own, _elements(self._own.node_space, value.nodes)
        found = {"nodes": self._nodes.of(nodes), "num_nodes": len(nodes)}
        if own.edge_space is not None:
            edges = [] if value.edges is None else _elements(own.edge_space, value.edges)
            links = [] if value.edge_links is None else list(value.edge_links)
            if len(links) != len(edges):
                raise ValueError(f"edge_links: {mismatch(f'{len(edges)}, one for each edge', len(links))}")
            found |= {"edges": self._edges.of(edges), "edge_links": self._links.of(links), "num_edges": len(edges)}
        return found

    def original(self, value: Any) -> Any:
        raise NotImplementedError  # actions of Graph spaces are refused


class _OneOf(_Form):
    """Values of a OneOf space."""

    def __init__(self, parts: Sequence[_Form]) -> None:
        self._parts = parts
        choices: dict[str, spaces.Space[Any]] = {str(i): part.space for i, part in enumerate(parts)}
        self.space = spaces.Dict({**choices, "choice": spaces.Discrete(len(parts))})
        self._unused = {name: _any_value(space) for name, space in choices.items()}

    def fixed(self, value: Any) -> Any:
        choice, chosen = value
        return {**self._unused, str(int(choice)): self._parts[choice].fixed(chosen), "choice": choice}

    def original(self, value: Any) -> Any:
        choice = int(value["choice"])
        return choice, self._parts[choice].original(value[str(choice)])


class _TextAction(_Form):
    """Actions of a Text space."""

    def __init__(self, space: spaces.Text) -> None:
        self._characters, self._end = space.characters, len(space.characters)
        at_least = np.arange(space.max_length) < space.min_length  # where the text cannot end
        self.space = spaces.MultiDiscrete(np.where(at_least, self._end, self._end + 1))

    def fixed(self, value: Any) -> Any:
        raise NotImplementedError  # observed texts stay as they are

    def original(self, value: Any) -> Any:
        indices = value.tolist()
        length = indices.index(self._end) if self._end in indices else len(indices)
        return "".join(self._characters[index] for index in indices[:length])


class _Batch:
    """Elements of a space behind each other, filled up to a number of them.

    Attributes:
        space: space of all of them.
    """

    def __init__(self, space: spaces.Space[Any], max_items: int, name: str, limit: str) -> None:
        self._item, self._max_items, self._name, self._limit = space, max_items, name, limit
        self.space = batch_space(space, max_items)
        self._unused = _any_value(space)

    def of(self, items: Sequence[Any]) -> Any:
        """Return the batch of some items; raise ValueError if there are too many."""
        num_unused = self._max_items - len(items)
        if num_unused < 0:
            hint = f"FixedShapes takes {self._limit}"
            raise ValueError(f"{self._name}: {mismatch(f'at most {self._max_items}', len(items), hint)}")
        return _stacked(self._item, [*items, *[self._unused] * num_unused])


def _form(space: spaces.Space[Any], limits: Mapping[str, int | None], *, is_action: bool) -> _Form:
    """Return the form of a space with arrays of one shape; raise ValueError if there is none."""

    def form(part: spaces.Space[Any]) -> _Form:
        return _form(part, limits, is_action=is_action)

    match space:
        case spaces.Dict():
            return _Dict({name: form(part) for name, part in space.spaces.items()})
        case spaces.Tuple():
            return _Tuple([form(part) for part in space.spaces])
        case spaces.Sequence():
            return _Sequence(space, form(space.feature_space), _limit(limits, "max_items"))
        case spaces.OneOf():
            return _OneOf([form(part) for part in space.spaces])
        case spaces.Graph() if is_action:
            raise ValueError(f"action_space: {mismatch('no Graph, whose links would have to fit its nodes', space)}")
        case spaces.Graph():
            return _Graph(space, _limit(limits, "max_items"), _limit(limits, "max_edges"))
        case spaces.Text() if is_action:
            return _TextAction(space)
    return _Same(space)


def _limit(limits: Mapping[str, int | None], name: str) -> int:
    limit = limits[name]
    if limit is None:
        raise ValueError(f"{name}: {mismatch('a number, because a Sequence or Graph space has no bound', None)}")
    return limit


def _elements(space: spaces.Space[Any], batch: Any) -> list[Any]:
    """Return the elements of a graph's nodes or edges."""
    return list(iterate(batch_space(space, len(batch)), batch)) if len(batch) else []


def _stacked(space: spaces.Space[Any], items: Sequence[Any]) -> Any:
    """Return values of a space behind each other, in the form of `batch_space`, with the dtypes that they have."""
    match space:
        case spaces.Dict():
            return {name: _stacked(part, [item[name] for item in items]) for name, part in space.spaces.items()}
        case spaces.Tuple():
            parts = enumerate(space.spaces)
            return tuple(_stacked(part, [item[position] for item in items]) for position, part in parts)
        case spaces.Text():
            return tuple(items)
    return np.stack(items)


def _any_value(space: spaces.Space[Any]) -> Any:
    """Return a value of a space: zeros where they are in it."""
    match space:
        case spaces.Dict():
            return {name: _any_value(part) for name, part in space.spaces.items()}
        case spaces.Tuple():
            return tuple(map(_any_value, space.spaces))
        case spaces.Box():
            return np.clip(np.zeros(space.shape, space.dtype), space.low, space.high)
        case spaces.Discrete():
            return space.start
        case spaces.MultiDiscrete():
            return space.start
        case spaces.MultiBinary():
            return np.zeros(space.shape, space.dtype)
        case spaces.Text():
            return space.characters[:1] * space.min_length
    raise ValueError(f"space: {mismatch('Box, Discrete, MultiDiscrete, MultiBinary, Text, Dict or Tuple', space)}")
