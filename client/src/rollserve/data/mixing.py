"""Several sources of batches as one, by weights."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from rollserve_wire.checks import check_choice, check_integer, check_type, type_error
from rollserve_wire.errors import InvalidArgumentError

__all__ = ["mix"]

_T = TypeVar("_T")


def mix(
    sources: Sequence[tuple[Iterable[_T], float]],
    *,
    seed: int,
    num_drawn: int = 0,
    until: str = "first",
) -> Iterator[_T]:
    """Yield batches of several sources, each drawn with the probability of its source's weight.

    Any iterable of batches can be a source, so live experience is one, too; a batch is asked for when it is drawn.

    >>> live = iter(lambda: sampler.obtain_samples(4000), None)  # doctest: +SKIP
    >>> stored = rollserve.data.read("episodes", num_epochs=None)  # doctest: +SKIP
    >>> for batch in rollserve.data.mix([(live, 0.5), (stored, 0.5)], seed=1):  # doctest: +SKIP
    ...     update(batch)

    Args:
        sources: pairs of an iterable and a positive weight. The weights are divided by their sum.
        seed: seed of the draws.
        num_drawn: number of batches that an earlier mix of the same sources, weights and seed has yielded, to go on
            with its draws, as long as no source had ended; the sources have to go on by themselves.
        until: `first` ends with the first source that has ended, so that the weights hold to the end; `last` goes on
            with the others.

    Raises:
        TypeError: an argument of the wrong type.
        InvalidArgumentError: no sources, a weight that is not positive, or another argument out of range.
    """
    sources = list(sources)
    if not sources:
        raise InvalidArgumentError.of("sources", expected="at least one", got="none")
    for position, source in enumerate(sources):
        if not isinstance(source, tuple | list) or len(source) != 2:
            raise type_error(f"sources[{position}]", "a pair of an iterable and a weight", source)
        if not isinstance(source[0], Iterable):
            raise type_error(f"sources[{position}]", "an iterable of batches", source[0])
        weight = source[1]
        check_type(f"sources[{position}]", weight, numbers.Real, "a positive weight")
        if not (math.isfinite(weight) and weight > 0):
            raise InvalidArgumentError.of(f"sources[{position}]", expected="a positive weight", got=weight)
    check_integer("seed", seed, 64, signed=False)
    check_integer("num_drawn", num_drawn, 63, signed=False)
    check_choice("until", until, ("first", "last"))
    weights = np.array([weight for _, weight in sources], np.float64)
    weights /= weights.max()  # whose sum could be infinite
    return _mixed(
        [iter(source) for source, _ in sources], weights, np.random.Generator(np.random.PCG64(seed)), num_drawn, until
    )


def _mixed(
    sources: list[Iterator[_T]],
    weights: np.ndarray,
    generator: np.random.Generator,
    num_drawn: int,
    until: str,
) -> Iterator[_T]:
    generator.bit_generator.advance(num_drawn)  # type: ignore[attr-defined]  # of PCG64; each draw takes one number
    while True:
        number = generator.random()
        while True:
            if not weights.any():
                return
            bounds = np.cumsum(weights)
            drawn = int(np.searchsorted(bounds, number * bounds[-1], side="right"))
            batch = next(sources[drawn], None)
            if batch is not None:
                break
            if until == "first":
                return
            weights[drawn] = 0
        yield batch
