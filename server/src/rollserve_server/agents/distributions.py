"""The base of all heads, and heads that sample from a distribution: countable and continuous actions."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rollserve_server.agents.action_masks import choose_legal
from rollserve_server.agents.agent import FLOAT32, LOG_PROB, InfoSpec, NoiseKind

if TYPE_CHECKING:
    from gymnasium import spaces

    from rollserve_server.agents.specs import HeadSettings

__all__ = [
    "BernoulliHead",
    "CategoricalHead",
    "Choice",
    "DiagonalGaussianHead",
    "EpsilonGreedyHead",
    "Head",
    "LegalEpsilonGreedyHead",
    "MultiCategoricalHead",
    "SampledHead",
    "SquashedGaussianHead",
]

Choice = tuple[list[np.ndarray], dict[str, np.ndarray]]
"""An array (M, *A) for each leaf of the action space, and an array (M, *I) for each info, by name."""


class Head(ABC):
    """A head, which turns a network's outputs into actions.

    Attributes:
        inputs: network outputs that the head reads; one row of each is flat.
        noise_width: K, random numbers per action.
        noise_kind: how noise is drawn; see `Agent.noise_kind`.
        factors: exploration factors, or None; see `Agent.factors`.
        infos: infos that the head returns.
    """

    inputs: tuple[InfoSpec, ...]
    noise_width: int
    noise_kind: NoiseKind | None = None
    factors: np.ndarray | None = None
    infos: tuple[InfoSpec, ...]

    @abstractmethod
    def draw_noise(self, generator: np.random.Generator, noise: np.ndarray) -> None:
        """Fill `noise`, (steps, K) float64, for the next steps of one episode."""

    @abstractmethod
    def act(self, outputs: Sequence[np.ndarray], noise: np.ndarray) -> Choice:
        """Choose an action for each row.

        Args:
            outputs: an array (M, size) for each of `inputs`, of its dtype; then, for a masked head, the legal actions.
            noise: (M, K) float64.
        """


class SampledHead(Head):
    """A head that samples actions, with one exploration factor for all rows or one for each."""

    @abstractmethod
    def act(self, outputs: Sequence[np.ndarray], noise: np.ndarray, factors: np.ndarray | None = None) -> Choice:
        """Choose an action for each row; `factors` (M,) replaces the factor that the head was made with."""

    @abstractmethod
    def act_best(self, outputs: Sequence[np.ndarray]) -> Choice:
        """Choose the best action for each row, without chance and with a log-probability of 0."""


_TINY = 2.0**-60  # below any uniform number except 0


class _UniformHead(SampledHead):
    """A head whose noise is uniform."""

    def draw_noise(self, generator: np.random.Generator, noise: np.ndarray) -> None:
        """Draw uniform numbers from [0, 1)."""
        generator.random(out=noise)


class _ChoiceHead(_UniformHead):
    """A head that chooses one of n actions by their scores."""

    noise_width = 1
    noise_kind = NoiseKind("uniform", 1)

    def __init__(self, space: spaces.Discrete, scores: str) -> None:
        """Choose an action of the space by the network output named `scores`."""
        self._space = space
        self.inputs = (InfoSpec(scores, FLOAT32, (int(space.n),)),)
        self.infos = (LOG_PROB, *self.inputs)

    def act_best(self, outputs: Sequence[np.ndarray]) -> Choice:
        """Choose the actions with the highest scores."""
        (scores,) = outputs
        infos = {"log_prob": np.zeros(len(scores), np.float32), self.inputs[0].name: scores}
        return [_from_start(scores.argmax(axis=1), self._space)], infos


class CategoricalHead(_ChoiceHead):
    """A categorical distribution, sampled by its inverse cumulative distribution: one uniform number per action."""

    def __init__(self, space: spaces.Discrete, temperature: float, scores: str = "logits") -> None:
        """Divide the network output named `scores` by a temperature."""
        super().__init__(space, scores)
        self._temperature = np.float32(temperature)

    def act(self, outputs: Sequence[np.ndarray], noise: np.ndarray, factors: np.ndarray | None = None) -> Choice:
        """Sample actions; `factors` are temperatures. The infos hold the scores unscaled."""
        (scores,) = outputs
        temperature = self._temperature if factors is None else factors
        choices, log_prob = _sample(np.array(scores.T, order="C"), noise[:, 0], temperature)
        return [_from_start(choices, self._space)], {"log_prob": log_prob, self.inputs[0].name: scores}


class EpsilonGreedyHead(_ChoiceHead):
    """The action with the highest Q-value or, with probability epsilon, any action."""

    def __init__(self, space: spaces.Discrete, epsilon: float) -> None:
        super().__init__(space, "q_values")
        self._epsilon = np.float64(epsilon)

    def act(self, outputs: Sequence[np.ndarray], noise: np.ndarray, factors: np.ndarray | None = None) -> Choice:
        """Choose actions; `factors` are values of epsilon."""
        (q_values,) = outputs
        epsilon = self._epsilon if factors is None else factors.astype(np.float64)
        best, uniform = q_values.argmax(axis=1), noise[:, 0]
        # A uniform number below epsilon is uniform in [0, epsilon), so it also chooses the random action.
        others, num_others = self._others(q_values, uniform / np.maximum(epsilon, _TINY))
        choices = np.where(uniform < epsilon, others, best)
        other = epsilon / num_others
        log_prob = np.log(np.where(choices == best, 1 - epsilon + other, other)).astype(np.float32)
        return [_from_start(choices, self._space)], {"log_prob": log_prob, "q_values": q_values}

    def _others(self, q_values: np.ndarray, fractions: np.ndarray) -> tuple[np.ndarray, int | np.ndarray]:
        """Return random actions, chosen by fractions (M,) of 1 or more, and from how many they were drawn."""
        num_actions = q_values.shape[1]
        return np.minimum(fractions * num_actions, num_actions - 1).astype(np.intp), num_actions


class LegalEpsilonGreedyHead(EpsilonGreedyHead):
    """The legal action with the highest Q-value or, with probability epsilon, any legal action.

    The Q-values of other actions are minus infinity.
    """

    def _others(self, q_values: np.ndarray, fractions: np.ndarray) -> tuple[np.ndarray, int | np.ndarray]:
        legal = q_values > -np.inf
        return choose_legal(legal, fractions), legal.sum(axis=1)


class MultiCategoricalHead(_UniformHead):
    """Independent categorical distributions, one for each element of an action."""

    def __init__(self, space: spaces.MultiDiscrete, temperature: float) -> None:
        """Divide the logits by a temperature."""
        self._space = space
        self._temperature = np.float32(temperature)
        numbers = space.nvec.ravel()
        # For each logit, its element and its value.
        self._elements = np.repeat(np.arange(numbers.size), numbers)
        self._values = np.concatenate([np.arange(number) for number in numbers])
        self._max_values = int(numbers.max())
        self.noise_width = numbers.size
        self.noise_kind = NoiseKind("uniform", self.noise_width)
        self.inputs = (InfoSpec("logits", FLOAT32, (self._elements.size,)),)
        self.infos = (LOG_PROB, *self.inputs)

    def act(self, outputs: Sequence[np.ndarray], noise: np.ndarray, factors: np.ndarray | None = None) -> Choice:
        """Sample actions; `factors` are temperatures. The infos hold the logits unscaled."""
        (logits,) = outputs
        scores = self._scores(logits)
        temperature = self._temperature if factors is None else np.tile(factors, self.noise_width)
        choices, log_probs = _sample(scores.reshape(len(scores), -1), noise.T.ravel(), temperature)
        log_prob = _by_row(log_probs, len(logits)).sum(axis=1)
        return [self._actions(choices, len(logits))], {"log_prob": log_prob, "logits": logits}

    def act_best(self, outputs: Sequence[np.ndarray]) -> Choice:
        """Choose the value with the highest logit for each element."""
        (logits,) = outputs
        infos = {"log_prob": np.zeros(len(logits), np.float32), "logits": logits}
        return [self._actions(self._scores(logits).argmax(axis=0), len(logits))], infos

    def _scores(self, logits: np.ndarray) -> np.ndarray:
        """Return the logits as (max values, elements, M); -inf rules out values that an element does not have."""
        scores = np.full((self._max_values, self.noise_width, len(logits)), -np.inf, np.float32)
        scores[self._values, self._elements] = logits.T
        return scores

    def _actions(self, choices: np.ndarray, num_rows: int) -> np.ndarray:
        return _from_start(_by_row(choices, num_rows).reshape(num_rows, *self._space.shape), self._space)


class BernoulliHead(SampledHead):
    """Independent Bernoulli distributions, one for each element of an action."""

    def __init__(self, space: spaces.MultiBinary, temperature: float) -> None:
        """Divide the logits by a temperature."""
        self._space = space
        self._temperature = np.float32(temperature)
        self.noise_width = math.prod(space.shape)
        self.noise_kind = NoiseKind("logistic", self.noise_width)
        self.inputs = (InfoSpec("logits", FLOAT32, (self.noise_width,)),)
        self.infos = (LOG_PROB, InfoSpec("logits", FLOAT32, space.shape))

    def draw_noise(self, generator: np.random.Generator, noise: np.ndarray) -> None:
        """Draw standard logistic numbers: one is below a logit with that logit's probability."""
        noise[:] = generator.logistic(size=noise.shape)

    def act(self, outputs: Sequence[np.ndarray], noise: np.ndarray, factors: np.ndarray | None = None) -> Choice:
        """Sample actions; `factors` are temperatures. The infos hold the logits unscaled."""
        (logits,) = outputs
        scaled = logits / (self._temperature if factors is None else factors[:, np.newaxis])
        ones = noise < scaled
        log_prob = -np.logaddexp(np.float32(0), np.where(ones, -scaled, scaled)).sum(axis=1)
        return [self._actions(ones)], self._infos(log_prob, logits)

    def act_best(self, outputs: Sequence[np.ndarray]) -> Choice:
        """Choose one where it is more likely than zero."""
        (logits,) = outputs
        return [self._actions(logits > 0)], self._infos(np.zeros(len(logits), np.float32), logits)

    def _actions(self, ones: np.ndarray) -> np.ndarray:
        return ones.reshape(-1, *self._space.shape).astype(self._space.dtype)

    def _infos(self, log_prob: np.ndarray, logits: np.ndarray) -> dict[str, np.ndarray]:
        return {"log_prob": log_prob, "logits": logits.reshape(-1, *self._space.shape)}


def _sample(
    scores: np.ndarray, uniform: np.ndarray, temperature: np.float32 | np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Sample M categorical distributions.

    Args:
        scores: (n, M), logits; overwritten. Each distribution is a column, because numpy sums over the first axis many
            times as fast.
        uniform: (M,), numbers from [0, 1).
        temperature: divisor of all scores, or (M,), one for each distribution.

    Returns:
        The choices and their log-probabilities, (M,) each.
    """
    scores -= scores.max(axis=0)
    if isinstance(temperature, np.ndarray) or temperature != 1:
        scores /= temperature
    cumulative = np.exp(scores)
    if len(cumulative) > len(uniform):
        np.cumsum(cumulative, axis=0, out=cumulative)
    else:  # adding row by row is many times as fast, in the same order
        for before, value in itertools.pairwise(cumulative):
            value += before
    total = cumulative[-1]
    # Leave out the last sum, to which the noise may be rounded up.
    choices = np.add.reduce(cumulative[:-1] <= uniform * total, axis=0, dtype=np.intp)
    log_prob: np.ndarray = scores[choices, np.arange(len(choices))] - np.log(total)
    return choices, log_prob


def _by_row(values: np.ndarray, num_rows: int) -> np.ndarray:
    """Return values that are grouped by element as contiguous (M, size), so that sums do not depend on M."""
    return np.array(values.reshape(-1, num_rows).T, order="C")


def _from_start(choices: np.ndarray, space: spaces.Discrete | spaces.MultiDiscrete) -> np.ndarray:
    """Return the actions of a space for choices that count from 0."""
    actions: np.ndarray = (choices + space.start).astype(space.dtype, copy=False)
    return actions


_HALF_LOG_2_PI = 0.5 * math.log(2 * math.pi)


class _GaussianHead(SampledHead):
    """Independent normal distributions, with a constant log_std or one that the network predicts.

    Where the dtype of actions is narrower than float32, `log_prob` is of the rounded action, which is executed.
    """

    def __init__(
        self, space: spaces.Box, log_std: np.ndarray | None, settings: HeadSettings, noise_scale: float
    ) -> None:
        """Prepare the distributions.

        Args:
            space: action space.
            log_std: constant log_std, (size,); None if the network predicts it.
            settings: bounds of log_std.
            noise_scale: factor of the standard deviations.
        """
        self._space = space
        self.noise_width = size = math.prod(space.shape)
        self.noise_kind = NoiseKind("normal", size)
        self.inputs = _moments(size)[: 2 if log_std is None else 1]
        self.infos = (LOG_PROB, *_moments(*space.shape))
        self._low, self._high = np.float32(settings.min_log_std), np.float32(settings.max_log_std)
        self._has_bounds = bool(np.isfinite([self._low, self._high]).any())
        self._scale = np.float32(noise_scale)
        self._rounds = space.dtype.itemsize < FLOAT32.itemsize
        self._log_std = None if log_std is None else self._clipped(log_std)
        self._repeated_log_std = np.empty((0, size), np.float32)  # for the rows of the last action
        log_normalizer = size * (_HALF_LOG_2_PI + math.log(noise_scale))
        if self._log_std is not None:
            self._std = self._scale * np.exp(self._log_std)
            log_normalizer += self._log_std.sum()
        self._log_normalizer = np.float32(log_normalizer)

    def draw_noise(self, generator: np.random.Generator, noise: np.ndarray) -> None:
        """Draw standard normal numbers."""
        generator.standard_normal(out=noise)

    def act(self, outputs: Sequence[np.ndarray], noise: np.ndarray, factors: np.ndarray | None = None) -> Choice:
        """Sample actions; `factors` scale the standard deviations."""
        mean, log_std = outputs[0], self._log_stds(outputs)
        deviations, std = noise.astype(np.float32), self._stds(log_std, factors)
        samples = mean + std * deviations
        actions = self._actions(samples)
        if self._rounds:
            samples = self._samples(actions)
            deviations = (samples - mean) / self._stds(log_std.astype(np.float64), factors)
        log_prob = self._log_prob(samples, self._log_density(deviations, log_std, factors))
        return [actions], self._infos(log_prob.astype(np.float32, copy=False), mean, log_std)

    def act_best(self, outputs: Sequence[np.ndarray]) -> Choice:
        """Choose the actions that belong to the means."""
        mean, log_std = outputs[0], self._log_stds(outputs)
        return [self._actions(mean)], self._infos(np.zeros(len(mean), np.float32), mean, log_std)

    @abstractmethod
    def _actions(self, samples: np.ndarray) -> np.ndarray:
        """Return the actions (M, *A) for samples (M, size)."""

    @abstractmethod
    def _samples(self, actions: np.ndarray) -> np.ndarray:
        """Return the samples (M, size), float64, that the actions (M, *A) belong to."""

    def _log_prob(self, samples: np.ndarray, log_density: np.ndarray) -> np.ndarray:
        """Return the log-probabilities (M,) of actions; may overwrite the log-densities of their samples."""
        return log_density

    def _log_stds(self, outputs: Sequence[np.ndarray]) -> np.ndarray:
        """Return log_std within its bounds, (M, size)."""
        if self._log_std is None:
            return self._clipped(outputs[1])
        if self._repeated_log_std.shape != outputs[0].shape:
            self._repeated_log_std = np.broadcast_to(self._log_std, outputs[0].shape)
        return self._repeated_log_std

    def _stds(self, log_std: np.ndarray, factors: np.ndarray | None) -> np.ndarray:
        """Return the standard deviations, (M, size) or (size,), in the dtype of `log_std`, scaled by `factors` (M,)."""
        is_known = self._log_std is not None and log_std.dtype == np.float32
        std: np.ndarray = self._std if is_known else self._scale * np.exp(log_std)
        return std if factors is None else factors[:, np.newaxis] * std

    def _log_density(self, deviations: np.ndarray, log_std: np.ndarray, factors: np.ndarray | None) -> np.ndarray:
        """Return the log-densities (M,) of samples that are so many standard deviations from the mean, (M, size)."""
        log_density: np.ndarray = np.add.reduce(np.square(deviations), axis=1)
        log_density *= np.float32(-0.5)
        log_density -= self._log_normalizer
        if self._log_std is None:
            log_density -= log_std.sum(axis=1)
        if factors is not None:
            log_density -= np.float32(self.noise_width) * np.log(factors)
        return log_density

    def _infos(self, log_prob: np.ndarray, mean: np.ndarray, log_std: np.ndarray) -> dict[str, np.ndarray]:
        shape = (len(mean), *self._space.shape)
        return {"log_prob": log_prob, "mean": mean.reshape(shape), "log_std": log_std.reshape(shape)}

    def _clipped(self, log_std: np.ndarray) -> np.ndarray:
        return np.minimum(np.maximum(log_std, self._low), self._high) if self._has_bounds else log_std


class DiagonalGaussianHead(_GaussianHead):
    """Independent normal distributions."""

    def _actions(self, samples: np.ndarray) -> np.ndarray:
        return samples.reshape(-1, *self._space.shape).astype(self._space.dtype, copy=False)

    def _samples(self, actions: np.ndarray) -> np.ndarray:
        return actions.reshape(len(actions), -1).astype(np.float64)


class SquashedGaussianHead(_GaussianHead):
    """Independent normal distributions, squashed into the action space's bounds by tanh.

    The infos `mean` and `log_std` are those before tanh. Actions that are rounded stay between the bounds, because a
    bound has no density.
    """

    def __init__(
        self, space: spaces.Box, log_std: np.ndarray | None, settings: HeadSettings, noise_scale: float
    ) -> None:
        super().__init__(space, log_std, settings, noise_scale)
        low, high = (bound.ravel().astype(np.float64) for bound in (space.low, space.high))
        self._exact_centre, self._exact_half_width = (high + low) / 2, (high - low) / 2
        self._centre, self._half_width = (
            self._exact_centre.astype(np.float32),
            self._exact_half_width.astype(np.float32),
        )
        self._inner_low, self._inner_high = np.nextafter(space.low, space.high), np.nextafter(space.high, space.low)
        self._log_half_width = np.float32(np.log((high - low) / 2).sum())

    def _actions(self, samples: np.ndarray) -> np.ndarray:
        space = self._space
        values = (self._centre + self._half_width * np.tanh(samples)).reshape(-1, *space.shape)
        actions: np.ndarray = np.clip(values, space.low, space.high).astype(space.dtype, copy=False)
        return np.clip(actions, self._inner_low, self._inner_high) if self._rounds else actions

    def _samples(self, actions: np.ndarray) -> np.ndarray:
        values = actions.reshape(len(actions), -1).astype(np.float64)
        samples: np.ndarray = np.arctanh((values - self._exact_centre) / self._exact_half_width)
        return samples

    def _log_prob(self, samples: np.ndarray, log_density: np.ndarray) -> np.ndarray:
        # The log of tanh's derivative, 1 - tanh², without cancellation where |samples| is large.
        log_slope = 2 * (np.float32(math.log(2)) - samples - np.logaddexp(np.float32(0), -2 * samples))
        log_density -= log_slope.sum(axis=1)
        log_density -= self._log_half_width
        return log_density


def _moments(*shape: int) -> tuple[InfoSpec, InfoSpec]:
    return InfoSpec("mean", FLOAT32, shape), InfoSpec("log_std", FLOAT32, shape)
