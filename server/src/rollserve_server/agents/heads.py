"""Heads: what makes actions of a policy's outputs, whatever has computed them."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Protocol

import numpy as np
from gymnasium import spaces

from rollserve_server.agents.agent import InfoSpec
from rollserve_server.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from gymnasium import Space

    from rollserve_server.agents.specs import HeadKind
    from rollserve_server.envs import Leaf

__all__ = [
    "ActionsHead",
    "CategoricalHead",
    "DiagonalGaussianHead",
    "Head",
    "SquashedGaussianHead",
    "build_head",
    "leaf_role",
]

_FLOAT32 = np.dtype(np.float32)
_LOG_PROB = InfoSpec("log_prob", _FLOAT32, ())
_HALF_LOG_2_PI = np.float32(0.5 * math.log(2 * math.pi))


class Head(Protocol):
    """What makes actions of a policy's outputs.

    Attributes:
        inputs: the outputs that it takes; a row of each is flat.
        noise_width, infos: as of Agent.
    """

    @property
    def inputs(self) -> tuple[InfoSpec, ...]: ...  # noqa: D102

    @property
    def noise_width(self) -> int: ...  # noqa: D102

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


def build_head(kind: HeadKind, action_space: Space[Any], log_std: np.ndarray | None = None) -> Head:
    """A head.

    Args:
        kind: which.
        action_space: what the actions are of.
        log_std: of a Gaussian whose deviation is the same always, (size,); None if it comes with each output.

    Raises:
        InvalidValueError: it is not one for the action space; the field is `head`.
    """
    match kind, action_space:
        case "categorical", spaces.Discrete():
            return CategoricalHead(action_space)
        case "diagonal_gaussian", spaces.Box() if _is_float(action_space):
            return DiagonalGaussianHead(action_space, log_std)
        case "squashed_gaussian", spaces.Box() if _is_float(action_space) and action_space.is_bounded():
            return SquashedGaussianHead(action_space)
    expected = {
        "categorical": "Discrete",
        "diagonal_gaussian": "a Box of floats",
        "squashed_gaussian": "a Box of floats with bounds",
    }[kind]
    raise InvalidValueError.of("head", kind, f"one for {action_space}, not for {expected},")


class CategoricalHead:
    """Draws one of n actions by the inverse of the cumulative distribution: one uniform number for each action."""

    noise_width = 1

    def __init__(self, space: spaces.Discrete) -> None:
        self._space = space
        self.inputs = (InfoSpec("logits", _FLOAT32, (int(space.n),)),)
        self.infos = (_LOG_PROB, *self.inputs)

    def draw_noise(self, generator: np.random.Generator, noise: np.ndarray) -> None:
        """Uniform numbers from [0, 1)."""
        generator.random(out=noise)

    def act(self, outputs: Sequence[np.ndarray], noise: np.ndarray) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
        """Actions, their log-probabilities, and the logits as they came."""
        (logits,) = outputs
        # An action's numbers stand together: what sums up over actions is many times as fast this way round.
        scores = np.array(logits.T, order="C")
        scores -= scores.max(axis=0)
        cumulative = _cumulative(np.exp(scores))
        total = cumulative[-1]
        # The noise may be rounded up to the last sum: it does not count.
        choices = np.add.reduce(cumulative[:-1] <= noise[:, 0] * total, axis=0, dtype=np.intp)
        log_prob = scores[choices, np.arange(len(choices))] - np.log(total)
        actions = (choices + self._space.start).astype(self._space.dtype, copy=False)
        return [actions], {"log_prob": log_prob, "logits": logits}


class DiagonalGaussianHead:
    """Draws from independent normal distributions."""

    def __init__(self, space: spaces.Box, log_std: np.ndarray | None = None) -> None:
        """Takes the logarithm of the standard deviation, (size,), unless it comes with each output."""
        self._space = space
        self._log_std = log_std
        self.noise_width = math.prod(space.shape)
        self.inputs = _gaussian(self.noise_width)[: 2 if log_std is None else 1]
        self.infos = (_LOG_PROB, *_gaussian(*space.shape))
        if log_std is not None:
            self._std = np.exp(log_std)
            self._log_normalizer = np.float32(log_std.sum() + 0.5 * log_std.size * math.log(2 * math.pi))

    def draw_noise(self, generator: np.random.Generator, noise: np.ndarray) -> None:
        """Standard normal numbers."""
        generator.standard_normal(out=noise)

    def act(self, outputs: Sequence[np.ndarray], noise: np.ndarray) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
        """Actions, their log-densities, and the parameters of their distribution."""
        mean, deviations = outputs[0], noise.astype(np.float32)
        shape = (len(mean), *self._space.shape)
        log_prob = np.float32(-0.5) * np.square(deviations).sum(axis=1)
        if self._log_std is not None:
            std, log_std = self._std, np.broadcast_to(self._log_std.reshape(self._space.shape), shape)
            log_prob -= self._log_normalizer
        else:
            std, log_std = np.exp(outputs[1]), outputs[1].reshape(shape)
            log_prob -= (outputs[1] + _HALF_LOG_2_PI).sum(axis=1)
        actions = (mean + std * deviations).reshape(shape)
        infos = {"log_prob": log_prob, "mean": mean.reshape(shape), "log_std": log_std}
        return [actions.astype(self._space.dtype, copy=False)], infos


class SquashedGaussianHead:
    """Draws from independent normal distributions, and takes the numbers into the space's bounds by tanh."""

    def __init__(self, space: spaces.Box) -> None:
        self._space = space
        low, high = (bound.ravel().astype(np.float64) for bound in (space.low, space.high))
        self._centre, self._scale = (((high + low) / 2).astype(np.float32), ((high - low) / 2).astype(np.float32))
        self._log_scale = np.float32(np.log((high - low) / 2).sum())
        self.noise_width = low.size
        self.inputs = _gaussian(low.size)
        self.infos = (_LOG_PROB, *_gaussian(*space.shape))

    def draw_noise(self, generator: np.random.Generator, noise: np.ndarray) -> None:
        """Standard normal numbers."""
        generator.standard_normal(out=noise)

    def act(self, outputs: Sequence[np.ndarray], noise: np.ndarray) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
        """Actions, their log-densities, and the parameters of the distribution before tanh."""
        (mean, log_std), deviations = outputs, noise.astype(np.float32)
        shape = (len(mean), *self._space.shape)
        before = mean + np.exp(log_std) * deviations
        # The logarithm of the derivative of tanh, 1 - tanh², without its cancellation where |before| is large.
        log_slope = 2 * (np.float32(math.log(2)) - before - np.logaddexp(np.float32(0), -2 * before))
        density = np.float32(-0.5) * np.square(deviations) - log_std - _HALF_LOG_2_PI - log_slope
        actions = np.clip(
            (self._centre + self._scale * np.tanh(before)).reshape(shape), self._space.low, self._space.high
        )
        infos = {
            "log_prob": density.sum(axis=1) - self._log_scale,
            "mean": mean.reshape(shape),
            "log_std": log_std.reshape(shape),
        }
        return [actions.astype(self._space.dtype, copy=False)], infos


class ActionsHead:
    """Takes actions as they are."""

    noise_width = 0

    def __init__(self, leaves: Sequence[Leaf], *, has_log_prob: bool) -> None:
        """Takes the leaves of the action space, and whether each action comes with its log-probability."""
        self._leaves = leaves
        actions = (InfoSpec(leaf_role("action", leaf), leaf.dtype, (math.prod(leaf.shape),)) for leaf in leaves)
        log_prob = [InfoSpec("log_prob", _FLOAT32, (1,))] if has_log_prob else []
        self.inputs = (*actions, *log_prob)
        self.infos = (_LOG_PROB,) if has_log_prob else ()

    def draw_noise(self, generator: np.random.Generator, noise: np.ndarray) -> None:
        """Draws nothing."""

    def act(self, outputs: Sequence[np.ndarray], noise: np.ndarray) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
        """Actions, and their log-probabilities if there are any."""
        actions = [
            output.reshape(-1, *leaf.shape)
            for output, leaf in zip(outputs[: len(self._leaves)], self._leaves, strict=True)
        ]
        return actions, {info.name: outputs[-1][:, 0] for info in self.infos}


def leaf_role(what: str, leaf: Leaf) -> str:
    """What the part of an observation or action that a leaf is is called: `what`, or `what/NAME` for one of several."""
    return f"{what}/{leaf.name}" if leaf.name else what


def _cumulative(values: np.ndarray) -> np.ndarray:
    """The sums (n, M) of the first 1, 2, ... n of values (n, M), which are overwritten."""
    if len(values) > values.shape[1]:
        return np.cumsum(values, axis=0, out=values)
    # Row by row numpy is many times as fast, and it adds up in the same order.
    for before, value in itertools.pairwise(values):
        value += before
    return values


def _gaussian(*shape: int) -> tuple[InfoSpec, InfoSpec]:
    """The parameters of a normal distribution."""
    return InfoSpec("mean", _FLOAT32, shape), InfoSpec("log_std", _FLOAT32, shape)


def _is_float(space: spaces.Box) -> bool:
    return np.issubdtype(space.dtype, np.floating)
