"""A head with a head for each leaf of a Dict or Tuple action space."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rollserve_server.agents.agent import LOG_PROB
from rollserve_server.agents.heads.head import Choice, Head
from rollserve_server.agents.specs.shapes import consecutive

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollserve_server.agents.heads.head import SampledHead

__all__ = ["HybridHead", "LeafPart"]


class LeafPart(NamedTuple):
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


class HybridHead(Head):
    """Independent heads, one for each leaf.

    Inputs and infos of a leaf have its name behind theirs, such as `logits/turn`; `log_prob` is the sum of all leaves'.
    With masked heads, it gets the legal values of all leaves (M, S) bool after the network's outputs.
    """

    def __init__(self, parts: Sequence[LeafPart], *, deterministic: bool) -> None:
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
