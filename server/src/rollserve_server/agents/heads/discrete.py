"""Heads for countable actions."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import numpy as np

from rollserve_server.agents.action_masks import choose_legal
from rollserve_server.agents.agent import FLOAT32, LOG_PROB, InfoSpec, NoiseKind
from rollserve_server.agents.heads.head import Choice, SampledHead

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gymnasium import spaces

__all__ = ["BernoulliHead", "CategoricalHead", "EpsilonGreedyHead", "LegalEpsilonGreedyHead", "MultiCategoricalHead"]

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
    cumulative = _cumulative(np.exp(scores))
    total = cumulative[-1]
    # Leave out the last sum, to which the noise may be rounded up.
    choices = np.add.reduce(cumulative[:-1] <= uniform * total, axis=0, dtype=np.intp)
    log_prob: np.ndarray = scores[choices, np.arange(len(choices))] - np.log(total)
    return choices, log_prob


def _cumulative(values: np.ndarray) -> np.ndarray:
    """Return the cumulative sums over the first axis of values (n, M), which are overwritten."""
    if len(values) > values.shape[1]:
        return np.cumsum(values, axis=0, out=values)
    # Adding row by row is many times as fast, in the same order.
    for before, value in itertools.pairwise(values):
        value += before
    return values


def _by_row(values: np.ndarray, num_rows: int) -> np.ndarray:
    """Return values that are grouped by element as contiguous (M, size), so that sums do not depend on M."""
    return np.array(values.reshape(-1, num_rows).T, order="C")


def _from_start(choices: np.ndarray, space: spaces.Discrete | spaces.MultiDiscrete) -> np.ndarray:
    """Return the actions of a space for choices that count from 0."""
    actions: np.ndarray = (choices + space.start).astype(space.dtype, copy=False)
    return actions
