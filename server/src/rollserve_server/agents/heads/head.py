"""Heads: what makes actions of a policy's outputs, whatever has computed them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

import numpy as np
from gymnasium import spaces

from rollserve_server.agents.agent import FLOAT32, LOG_PROB, InfoSpec
from rollserve_server.agents.exploration import AS_THE_AGENT_SAYS
from rollserve_server.agents.heads.discrete import (
    BernoulliHead,
    CategoricalHead,
    EpsilonGreedyHead,
    MultiCategoricalHead,
)
from rollserve_server.agents.heads.gaussian import DiagonalGaussianHead, SquashedGaussianHead
from rollserve_server.agents.specs import HeadSettings
from rollserve_server.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from gymnasium import Space

    from rollserve_server.agents.exploration import Exploration
    from rollserve_server.agents.specs import HeadKind
    from rollserve_server.envs import Leaf

__all__ = ["ActionsHead", "Head", "build_head", "leaf_role"]

_NO_SETTINGS = HeadSettings()
_SPACES: Mapping[HeadKind, str] = {
    "categorical": "Discrete",
    "boltzmann": "Discrete",
    "epsilon_greedy": "Discrete",
    "multi_categorical": "MultiDiscrete",
    "bernoulli": "MultiBinary",
    "diagonal_gaussian": "a Box of floats",
    "squashed_gaussian": "a Box of floats with bounds",
}


class Head(Protocol):
    """What makes actions of a policy's outputs.

    Attributes:
        inputs: the outputs that it takes; a row of each is flat.
        noise_width, factors, infos: as of Agent.
    """

    @property
    def inputs(self) -> tuple[InfoSpec, ...]: ...  # noqa: D102

    @property
    def noise_width(self) -> int: ...  # noqa: D102

    @property
    def factors(self) -> np.ndarray | None: ...  # noqa: D102

    @property
    def infos(self) -> tuple[InfoSpec, ...]: ...  # noqa: D102

    def draw_noise(self, generator: np.random.Generator, noise: np.ndarray) -> None:
        """As of Agent."""
        ...

    def act(self, outputs: Sequence[np.ndarray], noise: np.ndarray) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
        """For each leaf of the action space (M, *A), and the infos, as of Agent.

        Args:
            outputs: for each of `inputs` (M, size), of its dtype.
            noise: (M, K) float64.
        """
        ...

    def act_best(self, outputs: Sequence[np.ndarray]) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
        """The same without chance: the actions that are held to be best, with a log-probability of 0."""
        ...


_DrawingHead = (
    CategoricalHead
    | EpsilonGreedyHead
    | MultiCategoricalHead
    | BernoulliHead
    | DiagonalGaussianHead
    | SquashedGaussianHead
)


def build_head(
    kind: HeadKind,
    action_space: Space[Any],
    log_std: np.ndarray | None = None,
    settings: HeadSettings = _NO_SETTINGS,
    exploration: Exploration = AS_THE_AGENT_SAYS,
) -> Head:
    """A head.

    Args:
        kind: which.
        action_space: what the actions are of.
        log_std: of a Gaussian whose deviation is the same always, (size,); None if it comes with each output.
        settings: what it is made with.
        exploration: how freely it acts; what means nothing to it does not count.

    Raises:
        InvalidValueError: it is not one for the action space; the field is `head`.
    """
    factors = exploration.factors(kind, settings)
    if len(factors) > 1:
        return VariedHead(_build(kind, action_space, log_std, settings, 1.0), factors)
    return _build(kind, action_space, log_std, settings, factors[0])


def _build(
    kind: HeadKind, action_space: Space[Any], log_std: np.ndarray | None, settings: HeadSettings, factor: float
) -> _DrawingHead:
    match kind, action_space:
        case "categorical", spaces.Discrete():
            return CategoricalHead(action_space, factor)
        case "boltzmann", spaces.Discrete():
            return CategoricalHead(action_space, factor, "q_values")
        case "epsilon_greedy", spaces.Discrete():
            return EpsilonGreedyHead(action_space, factor)
        case "multi_categorical", spaces.MultiDiscrete():
            return MultiCategoricalHead(action_space, factor)
        case "bernoulli", spaces.MultiBinary():
            return BernoulliHead(action_space, factor)
        case "diagonal_gaussian", spaces.Box() if _is_float(action_space):
            return DiagonalGaussianHead(action_space, log_std, settings, factor)
        case "squashed_gaussian", spaces.Box() if _is_float(action_space) and action_space.is_bounded():
            return SquashedGaussianHead(action_space, log_std, settings, factor)
    raise InvalidValueError.of("head", expected=f"one for {action_space}, not for {_SPACES[kind]}", got=kind)


class VariedHead:
    """A head whose episodes differ in how freely they act."""

    def __init__(self, head: _DrawingHead, factors: Sequence[float]) -> None:
        """Takes what each episode's actions are drawn with."""
        self._head = head
        self.factors = np.array(factors)
        self.inputs = head.inputs
        self.noise_width = 1 + head.noise_width
        self.infos = head.infos
        self.act_best = head.act_best

    def draw_noise(self, generator: np.random.Generator, noise: np.ndarray) -> None:
        """As without the factor, which stands before it."""
        drawn = np.empty((len(noise), self._head.noise_width))
        self._head.draw_noise(generator, drawn)
        noise[:, 1:] = drawn

    def act(self, outputs: Sequence[np.ndarray], noise: np.ndarray) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
        """As without the factor, but with it."""
        return self._head.act(outputs, noise[:, 1:], noise[:, 0].astype(np.float32))


class ActionsHead:
    """Takes actions as they are."""

    noise_width = 0
    factors: np.ndarray | None = None

    def __init__(self, leaves: Sequence[Leaf], *, has_log_prob: bool) -> None:
        """Takes the leaves of the action space, and whether each action comes with its log-probability."""
        self._leaves = leaves
        actions = (InfoSpec(leaf_role("action", leaf), leaf.dtype, (math.prod(leaf.shape),)) for leaf in leaves)
        log_prob = [InfoSpec("log_prob", FLOAT32, (1,))] if has_log_prob else []
        self.inputs = (*actions, *log_prob)
        self.infos = (LOG_PROB,) if has_log_prob else ()

    def draw_noise(self, generator: np.random.Generator, noise: np.ndarray) -> None:
        """Draws nothing."""

    def act(self, outputs: Sequence[np.ndarray], noise: np.ndarray) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
        """Actions, and their log-probabilities if there are any."""
        actions = [
            output.reshape(-1, *leaf.shape)
            for output, leaf in zip(outputs[: len(self._leaves)], self._leaves, strict=True)
        ]
        return actions, {info.name: outputs[-1][:, 0] for info in self.infos}

    def act_best(self, outputs: Sequence[np.ndarray]) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
        """The same: what chance there is, is in the outputs."""
        return self.act(outputs, np.empty((0, 0)))


def leaf_role(what: str, leaf: Leaf) -> str:
    """What the part of an observation or action that a leaf is is called: `what`, or `what/NAME` for one of several."""
    return f"{what}/{leaf.name}" if leaf.name else what


def _is_float(space: spaces.Box) -> bool:
    return np.issubdtype(space.dtype, np.floating)
