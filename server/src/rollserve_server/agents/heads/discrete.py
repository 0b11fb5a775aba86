"""Heads that choose among actions that can be counted."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import numpy as np

from rollserve_server.agents.agent import FLOAT32, LOG_PROB, InfoSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gymnasium import spaces

__all__ = ["BernoulliHead", "CategoricalHead", "EpsilonGreedyHead", "MultiCategoricalHead"]


_TINY = 2.0**-60
"""Less than any uniform number but 0."""


class _UniformHead:
    """What draws by uniform numbers."""

    factors: np.ndarray | None = None

    def draw_noise(self, generator: np.random.Generator, noise: np.ndarray) -> None:
        """Uniform numbers from [0, 1)."""
        generator.random(out=noise)


class _ChoiceHead(_UniformHead):
    """What chooses one of n actions, which have scores."""

    noise_width = 1

    def __init__(self, space: spaces.Discrete, scores: str) -> None:
        """Takes the name of the scores."""
        self._space = space
        self.inputs = (InfoSpec(scores, FLOAT32, (int(space.n),)),)
        self.infos = (LOG_PROB, *self.inputs)

    def act_best(self, outputs: Sequence[np.ndarray]) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
        """The actions of the highest scores."""
        (scores,) = outputs
        infos = {"log_prob": np.zeros(len(scores), np.float32), self.inputs[0].name: scores}
        return [_from_start(scores.argmax(axis=1), self._space)], infos


class CategoricalHead(_ChoiceHead):
    """Draws one of n actions by the inverse of the cumulative distribution: one uniform number for each action."""

    def __init__(self, space: spaces.Discrete, temperature: float, scores: str = "logits") -> None:
        """Takes what the scores are divided by, and their name."""
        super().__init__(space, scores)
        self._temperature = np.float32(temperature)

    def act(
        self, outputs: Sequence[np.ndarray], noise: np.ndarray, factors: np.ndarray | None = None
    ) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
        """Actions, their log-probabilities, and the scores as they came."""
        (scores,) = outputs
        temperature = self._temperature if factors is None else factors
        choices, log_prob = _draw(np.array(scores.T, order="C"), noise[:, 0], temperature)
        return [_from_start(choices, self._space)], {"log_prob": log_prob, self.inputs[0].name: scores}


class EpsilonGreedyHead(_ChoiceHead):
    """Chooses the action of the highest Q-value, or any one now and then."""

    def __init__(self, space: spaces.Discrete, epsilon: float) -> None:
        """Takes how often it chooses at random."""
        super().__init__(space, "q_values")
        self._epsilon = np.float64(epsilon)

    def act(
        self, outputs: Sequence[np.ndarray], noise: np.ndarray, factors: np.ndarray | None = None
    ) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
        """Actions, their log-probabilities, and the Q-values."""
        (q_values,) = outputs
        epsilon = self._epsilon if factors is None else factors.astype(np.float64)
        best, drawn, num_actions = q_values.argmax(axis=1), noise[:, 0], q_values.shape[1]
        # A number that is below epsilon is uniform between 0 and that.
        others = np.minimum(drawn / np.maximum(epsilon, _TINY) * num_actions, num_actions - 1).astype(np.intp)
        choices = np.where(drawn < epsilon, others, best)
        other = epsilon / num_actions
        log_prob = np.log(np.where(choices == best, 1 - epsilon + other, other)).astype(np.float32)
        return [_from_start(choices, self._space)], {"log_prob": log_prob, "q_values": q_values}


class MultiCategoricalHead(_UniformHead):
    """Draws each element of an action by itself, as CategoricalHead does."""

    def __init__(self, space: spaces.MultiDiscrete, temperature: float) -> None:
        """Takes what the logits are divided by."""
        self._space = space
        self._temperature = np.float32(temperature)
        numbers = space.nvec.ravel()
        # Of each logit, of which element it is, and for which of its values.
        self._elements = np.repeat(np.arange(numbers.size), numbers)
        self._values = np.concatenate([np.arange(number) for number in numbers])
        self._most_values = int(numbers.max())
        self.noise_width = numbers.size
        self.inputs = (InfoSpec("logits", FLOAT32, (self._elements.size,)),)
        self.infos = (LOG_PROB, *self.inputs)

    def act(
        self, outputs: Sequence[np.ndarray], noise: np.ndarray, factors: np.ndarray | None = None
    ) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
        """Actions, their log-probabilities, and the logits."""
        (logits,) = outputs
        scores = self._scores(logits)
        temperature = self._temperature if factors is None else np.tile(factors, self.noise_width)
        choices, log_probs = _draw(scores.reshape(len(scores), -1), noise.T.ravel(), temperature)
        log_prob = _by_row(log_probs, len(logits)).sum(axis=1)
        return [self._actions(choices, len(logits))], {"log_prob": log_prob, "logits": logits}

    def act_best(self, outputs: Sequence[np.ndarray]) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
        """Each element's value of the highest logit."""
        (logits,) = outputs
        infos = {"log_prob": np.zeros(len(logits), np.float32), "logits": logits}
        return [self._actions(self._scores(logits).argmax(axis=0), len(logits))], infos

    def _scores(self, logits: np.ndarray) -> np.ndarray:
        """(most values, elements, M); what no value of an element belongs to is ruled out."""
        scores = np.full((self._most_values, self.noise_width, len(logits)), -np.inf, np.float32)
        scores[self._values, self._elements] = logits.T
        return scores

    def _actions(self, choices: np.ndarray, num_rows: int) -> np.ndarray:
        return _from_start(_by_row(choices, num_rows).reshape(num_rows, *self._space.shape), self._space)


class BernoulliHead:
    """Draws each element of an action by itself, zero or one."""

    factors: np.ndarray | None = None

    def __init__(self, space: spaces.MultiBinary, temperature: float) -> None:
        """Takes what the logits are divided by."""
        self._space = space
        self._temperature = np.float32(temperature)
        self.noise_width = math.prod(space.shape)
        self.inputs = (InfoSpec("logits", FLOAT32, (self.noise_width,)),)
        self.infos = (LOG_PROB, InfoSpec("logits", FLOAT32, space.shape))

    def draw_noise(self, generator: np.random.Generator, noise: np.ndarray) -> None:
        """Standard logistic numbers: one is below a logit with the probability that it is of."""
        noise[:] = generator.logistic(size=noise.shape)

    def act(
        self, outputs: Sequence[np.ndarray], noise: np.ndarray, factors: np.ndarray | None = None
    ) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
        """Actions, their log-probabilities, and the logits of ones."""
        (logits,) = outputs
        scaled = logits / (self._temperature if factors is None else factors[:, np.newaxis])
        ones = noise < scaled
        log_prob = -np.logaddexp(np.float32(0), np.where(ones, -scaled, scaled)).sum(axis=1)
        return [self._actions(ones)], self._told(log_prob, logits)

    def act_best(self, outputs: Sequence[np.ndarray]) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
        """A one where it is more likely than a zero."""
        (logits,) = outputs
        return [self._actions(logits > 0)], self._told(np.zeros(len(logits), np.float32), logits)

    def _actions(self, ones: np.ndarray) -> np.ndarray:
        return ones.reshape(-1, *self._space.shape).astype(self._space.dtype)

    def _told(self, log_prob: np.ndarray, logits: np.ndarray) -> dict[str, np.ndarray]:
        return {"log_prob": log_prob, "logits": logits.reshape(-1, *self._space.shape)}


def _draw(
    scores: np.ndarray, uniform: np.ndarray, temperature: np.float32 | np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Draws from M categorical distributions.

    Args:
        scores: (n, M), the logits; overwritten. A distribution's numbers stand in a column: what sums up over actions
            is many times as fast this way round.
        uniform: (M,), numbers from [0, 1).
        temperature: what scores are divided by, or (M,), one for each.

    Returns:
        What is drawn, and its log-probability, (M,).
    """
    scores -= scores.max(axis=0)
    if isinstance(temperature, np.ndarray) or temperature != 1:
        scores /= temperature
    cumulative = _cumulative(np.exp(scores))
    total = cumulative[-1]
    # The noise may be rounded up to the last sum: it does not count.
    choices = np.add.reduce(cumulative[:-1] <= uniform * total, axis=0, dtype=np.intp)
    log_prob: np.ndarray = scores[choices, np.arange(len(choices))] - np.log(total)
    return choices, log_prob


def _cumulative(values: np.ndarray) -> np.ndarray:
    """The sums (n, M) of the first 1, 2, ... n of values (n, M), which are overwritten."""
    if len(values) > values.shape[1]:
        return np.cumsum(values, axis=0, out=values)
    # Row by row numpy is many times as fast, and it adds up in the same order.
    for before, value in itertools.pairwise(values):
        value += before
    return values


def _by_row(values: np.ndarray, num_rows: int) -> np.ndarray:
    """(M, size) of what stands together by element; in this order, so that sums do not depend on how many rows."""
    return np.array(values.reshape(-1, num_rows).T, order="C")


def _from_start(choices: np.ndarray, space: spaces.Discrete | spaces.MultiDiscrete) -> np.ndarray:
    """Actions of a space."""
    actions: np.ndarray = (choices + space.start).astype(space.dtype, copy=False)
    return actions
