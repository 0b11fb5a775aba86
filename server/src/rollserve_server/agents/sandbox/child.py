"""What the trials of all agents have in common: limits, an answer, and the search for numbers of rows.

A trial runs in a process of its own, which may crash, hang or run out of memory without harm to others. Its standard
input is a pickle of limits and arguments, from the process that started it. On its standard output comes what it has
found, or `{"error": …}`, as JSON.

The trial of models loads this by itself: it knows nothing of the rest.
"""

from __future__ import annotations

import json
import os
import pickle
import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["RefusedError", "answer", "changed", "find_batching"]

_SIZES = (1, 2, 3, 4, 5, 7, 8, 12, 13, 16, 17, 24, 31, 32, 33, 48, 63, 64)
"""Numbers of rows to try."""
_MULTIPLES = (1, 8, 16)
_MOST_ROWS = _SIZES[-1]
_COMPARED_ROWS = 64
"""How many, at least, of each number of rows: where bits differ at all, they do not in every row."""
_TILE_ROWS = 8
"""Matrix products of numpy differ with the number of rows, but not with what is in the others of so many."""
_NUM_REPEATED = 16
_MOST_PRINTED_BYTES, _MOST_WRITTEN_BYTES = 1 << 20, 1 << 30

_Run = Callable[[np.ndarray], Sequence[bytes]]


class RefusedError(Exception):
    """The agent is of no use; the text says why.

    Attributes:
        details: more of it, as JSON has it.
    """

    def __init__(self, text: str, **details: object) -> None:
        super().__init__(text)
        self.details = details


def answer(probe: Callable[..., dict[str, Any]]) -> None:
    """Is what such a process does: it answers with what the function returns, and ends."""
    limits, arguments = pickle.load(sys.stdin.buffer)  # noqa: S301  # what started this process wrote it
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints is no answer
    _limit(**limits)
    try:
        found = probe(**arguments)
    except RefusedError as error:
        found = {"error": str(error), **error.details}
    except MemoryError:
        found = {"error": "it needs more memory than it may have"}
    with out:
        json.dump(found, out)
    os._exit(0)  # whatever a library has still to do


def changed(parameters: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Other numbers of the same types and shapes: sums of zeros do not tell in which order they are added."""
    generator = np.random.default_rng(0)
    return {
        name: np.asarray(value + generator.normal(scale=0.5, size=value.shape), value.dtype)
        if value.dtype.kind == "f"
        else value
        for name, value in parameters.items()
    }


def find_batching(run: _Run, num_rows: int) -> tuple[int, int]:
    """In which numbers of rows a row's bits depend on nothing else; as of Batching.

    Args:
        run: gives the bits of each row's results, for the numbers of those that are to be run together.
        num_rows: how many there are to choose from, at least 64.

    Raises:
        RefusedError: they differ for the same input.
    """
    for row in range(_NUM_REPEATED):
        first, again = (run(np.array([row])) for _ in range(2))
        if first != again:
            text = "all chance has to come from its noise, and all memory from its states"
            raise RefusedError(f"it gives other results for the same input: {text}")
    generator = np.random.default_rng(0)
    for multiple in _MULTIPLES:
        sizes = [size for size in _SIZES if size % multiple == 0]
        if _is_independent(run, num_rows, sizes, generator):
            return multiple, _MOST_ROWS
    if _is_independent(run, num_rows, [_TILE_ROWS] * 2, generator):
        return _TILE_ROWS, _TILE_ROWS
    return 1, 1


def _is_independent(run: _Run, num_rows: int, sizes: Sequence[int], generator: np.random.Generator) -> bool:
    """Whether rows have the same results in all these numbers, with other neighbours each time."""
    known: dict[int, bytes] = {}
    for size in sizes:
        for _ in range(max(2, -(-_COMPARED_ROWS // size))):
            chosen = generator.permutation(num_rows)[:size]
            for row, result in zip(chosen.tolist(), run(chosen), strict=True):
                if known.setdefault(row, result) != result:
                    return False
    return True


def _limit(memory_bytes: int, seconds: int, writes_files: bool) -> None:
    # Of memory only what is written to counts: libraries reserve far more addresses than they use.
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))  # at the second one it is killed
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # What it prints goes into a file, too.
    most_bytes = _MOST_WRITTEN_BYTES if writes_files else _MOST_PRINTED_BYTES
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
