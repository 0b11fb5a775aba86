"""Heads built for an action space: for single leaves or all of them, with masks and exploration factors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from gymnasium import Space, spaces

from rollserve_server.agents.agent import ACTION_MASK, FLOAT32, LOG_PROB, ActionMask, InfoSpec, LeafMask, leaf_role
from rollserve_server.agents.distributions import (
    BernoulliHead,
    CategoricalHead,
    Choice,
    DiagonalGaussianHead,
    EpsilonGreedyHead,
    Head,
    LegalEpsilonGreedyHead,
    MultiCategoricalHead,
    SampledHead,
    SquashedGaussianHead,
)
from rollserve_server.agents.exploration import DEFAULT_EXPLORATION, Exploration
from rollserve_server.agents.specs import DEFAULT_HEAD_SETTINGS, HeadKind, HeadSettings, LeafHead, consecutive
from rollserve_server.envs import Leaf, leaves_of_space
from rollserve_server.errors import InvalidValueError, listed, within

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["ActionsHead", "build_head", "build_hybrid"]

_SPACES: Mapping[HeadKind, str] = {
    "categorical": "Discrete",
    "boltzmann": "Discrete",
    "epsilon_greedy": "Discrete",
    "multi_categorical": "MultiDiscrete",
    "bernoulli": "MultiBinary",
    "diagonal_gaussian": "a Box of floats",
    "squashed_gaussian": "a Box of floats with bounds",
}
"""Action space that each kind of head needs."""


def build_head(
    kind: HeadKind,
    action_space: Space[Any],
    log_std: np.ndarray | None = None,
    settings: HeadSettings = DEFAULT_HEAD_SETTINGS,
    exploration: Exploration = DEFAULT_EXPLORATION,
    mask: ActionMask | None = None,
) -> Head:
    """Build a head.

    Args:
        kind: kind of the head.
        action_space: action space of one row.
        log_std: log_std of a Gaussian, (size,), if it is constant; None if the network predicts it.
        settings: settings of the head.
        exploration: how freely the head acts; factors that the kind does not use are ignored.
        mask: action mask; None without one.

    Raises:
        InvalidValueError: the head does not fit the action space; the field is `head`.
    """
    factors = exploration.factors(kind, settings)
    is_varied = len(factors) > 1
    factor, leaf_mask = 1.0 if is_varied else factors[0], None if mask is None else mask.leaves[0]
    head = _build(kind, action_space, log_std, settings, factor, leaf_mask)
    if is_varied:
        return _VariedHead(head, factors)
    return _BestHead(head) if exploration.deterministic else head


def build_hybrid(
    leaf_heads: Mapping[str, LeafHead],
    action_space: Space[Any],
    log_stds: Mapping[str, np.ndarray | None],
    exploration: Exploration = DEFAULT_EXPLORATION,
    mask: ActionMask | None = None,
) -> _HybridHead:
    """Build a head with a head for each leaf of a Dict or Tuple action space.

    Args:
        leaf_heads: kinds and settings by the name of the leaf.
        action_space: action space of one row.
        log_stds: constant log_std of Gaussians, by the name of the leaf.
        exploration: how freely the heads act; each uses the factors that its kind has.
        mask: action mask; None without one.

    Raises:
        InvalidValueError: a head is missing or does not fit its leaf, or episodes differ in too many ways; the field is
            `head`, or within `hybrid`.
    """
    leaves = leaves_of_space(action_space)
    if not isinstance(action_space, spaces.Dict | spaces.Tuple):
        raise InvalidValueError.of(
            "head", expected=f"a head for {action_space}", got="hybrid, which needs Dict or Tuple"
        )
    names = [leaf.name for leaf in leaves]
    if set(leaf_heads) != set(names):
        expected, got = (f"heads for {listed(sorted(each))}" for each in (names, leaf_heads))
        raise InvalidValueError.of("hybrid.leaves", expected=expected, got=got)
    parts, masks = [], {} if mask is None else {each.name: each for each in mask.leaves}
    for leaf in leaves:
        kind, settings = leaf_heads[leaf.name]
        factors = exploration.factors(kind, settings)
        factor = factors[0] if len(factors) == 1 else 1.0
        with within(f"hybrid.leaves[{leaf.name!r}]"):
            head = _build(kind, leaf.space, log_stds.get(leaf.name), settings, factor, masks.get(leaf.name))
        columns = masks[leaf.name].columns if leaf.name in masks else None
        parts.append(_LeafPart(leaf.name, head, factors if len(factors) > 1 else (), columns))
    return _HybridHead(parts, deterministic=exploration.deterministic)


def _build(
    kind: HeadKind,
    action_space: Space[Any],
    log_std: np.ndarray | None,
    settings: HeadSettings,
    factor: float,
    mask: LeafMask | None,
) -> SampledHead:
    """Build the head of a leaf."""
    head: SampledHead
    match kind, action_space:
        case "categorical", spaces.Discrete():
            head = CategoricalHead(action_space, factor)
        case "boltzmann", spaces.Discrete():
            head = CategoricalHead(action_space, factor, "q_values")
        case "epsilon_greedy", spaces.Discrete():
            head = (EpsilonGreedyHead if mask is None else LegalEpsilonGreedyHead)(action_space, factor)
        case "multi_categorical", spaces.MultiDiscrete():
            head = MultiCategoricalHead(action_space, factor)
        case "bernoulli", spaces.MultiBinary():
            head = BernoulliHead(action_space, factor)
        case "diagonal_gaussian", spaces.Box() if _is_float(action_space):
            head = DiagonalGaussianHead(action_space, log_std, settings, factor)
        case "squashed_gaussian", spaces.Box() if _is_float(action_space) and action_space.is_bounded():
            head = SquashedGaussianHead(action_space, log_std, settings, factor)
        case _:
            got = f"{kind}, which needs {_SPACES[kind]}"
            raise InvalidValueError.of("head", expected=f"a head for {action_space}", got=got)
    return head if mask is None else _MaskedHead(head, mask)  # heads of leaves with a mask have one input


def _is_float(space: spaces.Box) -> bool:
    return np.issubdtype(space.dtype, np.floating)


class _MaskedHead(SampledHead):
    """A head that sees minus infinity in place of the scores of masked actions.

    For a MultiBinary leaf, whose scores are the logits of ones, it sees infinity where zeros are masked. It gets the
    legal values of its leaf (M, values) bool after the network's outputs. Its infos have the scores as the network gave
    them.
    """

    def __init__(self, head: SampledHead, mask: LeafMask) -> None:
        """Choose as `head` does, which has one input with scores and takes minus infinity for impossible."""
        self._head, self._mask = head, mask
        self.inputs, self.noise_width, self.noise_kind = head.inputs, head.noise_width, head.noise_kind
        self.infos = (*head.infos, mask.spec._replace(name=ACTION_MASK))

    def draw_noise(self, generator: np.random.Generator, noise: np.ndarray) -> None:
        """Draw the head's noise."""
        self._head.draw_noise(generator, noise)

    def act(self, outputs: Sequence[np.ndarray], noise: np.ndarray, factors: np.ndarray | None = None) -> Choice:
        """Sample legal actions."""
        return self._with_infos(self._head.act([self._masked(outputs)], noise, factors), outputs)

    def act_best(self, outputs: Sequence[np.ndarray]) -> Choice:
        """Choose the best legal actions."""
        return self._with_infos(self._head.act_best([self._masked(outputs)]), outputs)

    def _masked(self, outputs: Sequence[np.ndarray]) -> np.ndarray:
        scores, legal = outputs
        if self._mask.is_binary:
            scores, legal = np.where(legal[:, ::2], scores, np.float32(np.inf)), legal[:, 1::2]
        return np.where(legal, scores, np.float32(-np.inf))

    def _with_infos(self, choice: Choice, outputs: Sequence[np.ndarray]) -> Choice:
        actions, infos = choice
        name, (scores, legal) = self.inputs[0].name, outputs
        infos[name], infos[ACTION_MASK] = scores.reshape(infos[name].shape), legal
        return actions, infos


class _BestHead(Head):
    """A head that always chooses the best action."""

    noise_width = 0

    def __init__(self, head: SampledHead) -> None:
        """Choose the best actions of `head`."""
        self._head = head
        self.inputs, self.infos = head.inputs, head.infos

    def draw_noise(self, generator: np.random.Generator, noise: np.ndarray) -> None:
        """Draw nothing."""

    def act(self, outputs: Sequence[np.ndarray], noise: np.ndarray) -> Choice:
        """Choose the best actions."""
        return self._head.act_best(outputs)


class _VariedHead(Head):
    """A head whose episodes differ in their exploration factor, which is the first noise number."""

    def __init__(self, head: SampledHead, factors: Sequence[float]) -> None:
        """Act as `head` does, in episode i with `factors[i % len(factors)]`."""
        self._head = head
        self.factors = np.array(factors)
        self.inputs, self.infos = head.inputs, head.infos
        self.noise_width = 1 + head.noise_width

    def draw_noise(self, generator: np.random.Generator, noise: np.ndarray) -> None:
        """Fill `noise[:, 1:]`; the caller sets `noise[:, 0]` to the factor."""
        drawn = np.empty((len(noise), self._head.noise_width))
        self._head.draw_noise(generator, drawn)
        noise[:, 1:] = drawn

    def act(self, outputs: Sequence[np.ndarray], noise: np.ndarray) -> Choice:
        """Sample actions with the exploration factor applied; `noise[:, 0]` holds the factor."""
        return self._head.act(outputs, noise[:, 1:], noise[:, 0].astype(np.float32))


class _LeafPart(NamedTuple):
    """The head of a leaf.

    Attributes:
        name: name of the leaf.
        head: head, made with the factor of all episodes, or with 1 if episodes differ in it.
        factors: exploration factors: episode i has the one at i modulo their number. Empty if episodes do not differ.
        mask: columns of the leaf in the action mask; None if the head is not masked.
    """

    name: str
    head: SampledHead
    factors: tuple[float, ...]
    mask: slice | None = None


class _HybridHead(Head):
    """Independent heads, one for each leaf.

    Inputs and infos of a leaf have its name behind theirs, such as `logits/turn`; `log_prob` is the sum of all leaves'.
    With masked heads, it gets the legal values of all leaves (M, S) bool after the network's outputs.
    """

    def __init__(self, parts: Sequence[_LeafPart], *, deterministic: bool) -> None:
        """Act with the heads of all leaves, in their order.

        Args:
            parts: heads.
            deterministic: whether each head takes its best action.
        """
        self._parts = parts
        self._deterministic = deterministic
        inputs = [[each._replace(name=f"{each.name}/{part.name}") for each in part.head.inputs] for part in parts]
        self.inputs = tuple(each for of_leaf in inputs for each in of_leaf)
        self._outputs = consecutive(map(len, inputs))
        infos = (
            info._replace(name=f"{info.name}/{part.name}")
            for part in parts
            for info in part.head.infos
            if info != LOG_PROB
        )
        self.infos = (LOG_PROB, *infos)
        widths = [0 if deterministic else part.head.noise_width for part in parts]
        num_factors = [len(part.factors) for part in parts if part.factors]
        if num_factors and not deterministic:
            # The first noise number is the episode's among all combinations of factors.
            self.factors = np.arange(np.lcm.reduce(num_factors), dtype=np.float64)
        self._noise = consecutive([int(self.factors is not None), *widths])[1:]
        self.noise_width = int(self.factors is not None) + sum(widths)
        self._factors = [np.array(part.factors, np.float32) for part in parts]

    def draw_noise(self, generator: np.random.Generator, noise: np.ndarray) -> None:
        """Draw the noise of each head; the caller sets the first number if episodes differ."""
        for part, columns in zip(self._parts, self._noise, strict=True):
            drawn = np.empty((len(noise), columns.stop - columns.start))
            if drawn.shape[1]:
                part.head.draw_noise(generator, drawn)
            noise[:, columns] = drawn

    def act(self, outputs: Sequence[np.ndarray], noise: np.ndarray) -> Choice:
        """Choose an action for each leaf."""
        actions: list[np.ndarray] = []
        infos: dict[str, np.ndarray] = {}
        log_prob = np.zeros(len(noise), np.float32)
        for number, part in enumerate(self._parts):
            own = outputs[self._outputs[number]]
            chosen, of_leaf = self._act(number, own if part.mask is None else [*own, outputs[-1][:, part.mask]], noise)
            actions += chosen
            log_prob += of_leaf.pop("log_prob")
            infos |= {f"{name}/{part.name}": column for name, column in of_leaf.items()}
        return actions, {"log_prob": log_prob, **infos}

    def _act(self, number: int, outputs: Sequence[np.ndarray], noise: np.ndarray) -> Choice:
        """Choose actions of one leaf."""
        head, factors = self._parts[number].head, self._factors[number]
        if self._deterministic:
            return head.act_best(outputs)
        own_noise = noise[:, self._noise[number]]
        if not len(factors):
            return head.act(outputs, own_noise)
        return head.act(outputs, own_noise, factors[noise[:, 0].astype(np.intp) % len(factors)])


class ActionsHead(Head):
    """A head that returns the model's actions unchanged."""

    noise_width = 0

    def __init__(self, leaves: Sequence[Leaf], *, has_log_prob: bool, mask: ActionMask | None = None) -> None:
        """Read the leaves of the action space and, if the model gives it, the log-probability.

        With a mask, the head gets the legal actions after these, and returns them as an info; it does not apply them.
        """
        self._leaves = leaves
        actions = (InfoSpec(leaf_role("action", leaf), leaf.dtype, (math.prod(leaf.shape),)) for leaf in leaves)
        log_prob = [InfoSpec("log_prob", FLOAT32, (1,))] if has_log_prob else []
        self.inputs = (*actions, *log_prob)
        self._mask = mask
        self.infos = (*((LOG_PROB,) if has_log_prob else ()), *(() if mask is None else mask.infos))

    def draw_noise(self, generator: np.random.Generator, noise: np.ndarray) -> None:
        """Draw nothing."""

    def act(self, outputs: Sequence[np.ndarray], noise: np.ndarray) -> Choice:
        """Return the actions, with their log-probability if the model gives it."""
        num_leaves = len(self._leaves)
        actions = [
            output.reshape(-1, *leaf.shape) for output, leaf in zip(outputs[:num_leaves], self._leaves, strict=True)
        ]
        infos = {} if self._mask is None else self._mask.recorded(outputs[-1])
        if LOG_PROB in self.infos:
            infos[LOG_PROB.name] = outputs[num_leaves].reshape(-1)
        return actions, infos
