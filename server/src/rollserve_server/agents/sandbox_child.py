"""The child's side of a sandbox: limits, the answer, and the search for numbers of rows.

A probe runs in a child process, which may crash, hang or run out of memory without harm to the server. The child's
standard input is a pickle of limits and arguments from the parent. Its standard output is the result as JSON, or
`{"error": …}`.

The probe of ONNX models loads this module by its path, so it imports nothing of this package.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["AgentRefusedError", "answer", "find_batching", "perturbed"]

_SIZES = (1, 2, 3, 4, 5, 7, 8, 12, 13, 16, 17, 24, 31, 32, 33, 48, 63, 64)  # numbers of rows to try
_MULTIPLES = (1, 8, 16)
_MAX_ROWS = _SIZES[-1]
_NUM_COMPARED_ROWS = 64  # for each number of rows: where bits differ at all, they do not differ in every row
_TILE_ROWS = 8  # numpy's matrix products depend on the number of rows, but with 8 rows not on the other rows
_NUM_REPEATED = 16
_MAX_PRINTED_BYTES, _MAX_WRITTEN_BYTES = 1 << 20, 1 << 30

_Run = Callable[[np.ndarray], Sequence[bytes]]


class AgentRefusedError(Exception):
    """The agent is refused; the text says why.

    Attributes:
        details: further details, as JSON.
    """

    def __init__(self, text: str, **details: object) -> None:
        super().__init__(text)
        self.details = details


def answer(probe: Callable[..., dict[str, Any]]) -> None:
    """Run a probe with the arguments from standard input, write the answer, and exit; the main function of a child."""
    limits, arguments = pickle.load(sys.stdin.buffer)  # noqa: S301  # written by the parent
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output that libraries print must not reach the answer
    _limit(**limits)
    try:
        result = probe(**arguments)
    except AgentRefusedError as error:
        result = {"error": str(error), **error.details}
    except MemoryError:
        result = {"error": "the agent needs more memory than the sandbox allows"}
    with out:
        json.dump(result, out)
    os._exit(0)  # without running exit handlers of libraries


def perturbed(parameters: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return other numbers of the same dtypes and shapes: sums of zeros do not reveal the order of addition."""
    generator = np.random.default_rng(0)
    return {
        name: np.asarray(value + generator.normal(scale=0.5, size=value.shape), value.dtype)
        if value.dtype.kind == "f"
        else value
        for name, value in parameters.items()
    }


def find_batching(runs: Sequence[_Run], num_rows: int) -> tuple[int, int]:
    """Find the numbers of rows that give a row the same bits, whatever its neighbours and its position.

    Args:
        runs: functions that run the rows at these positions together, and return the bits of each row's results: of
            the agent, and of the agent with other parameters, whose failures are ignored.
        num_rows: number of rows to choose from, at least 64.

    Returns:
        `multiple` and `max_rows`, as in `Batching`.

    Raises:
        AgentRefusedError: results differ for the same input.
    """

    def run(chosen: np.ndarray) -> Sequence[bytes]:
        results = [runs[0](chosen)]
        for other in runs[1:]:
            with contextlib.suppress(Exception):
                results.append(other(chosen))
        return [b"".join(row) for row in zip(*results, strict=True)]

    for row in range(_NUM_REPEATED):
        first, again = (run(np.array([row])) for _ in range(2))
        if first != again:
            expected = "expected randomness only from its noise, and memory only in its states"
            raise AgentRefusedError(f"results differ for the same input: {expected}")
    generator = np.random.default_rng(0)
    for multiple in _MULTIPLES:
        sizes = [size for size in _SIZES if size % multiple == 0]
        if _is_independent(run, num_rows, sizes, generator):
            return multiple, _MAX_ROWS
    if _is_independent(run, num_rows, [_TILE_ROWS] * 2, generator):
        return _TILE_ROWS, _TILE_ROWS
    return 1, 1


def _is_independent(run: _Run, num_rows: int, sizes: Sequence[int], generator: np.random.Generator) -> bool:
    """Whether rows have the same results for all these numbers of rows, with other neighbours each time."""
    known: dict[int, bytes] = {}
    for size in sizes:
        for _ in range(max(2, -(-_NUM_COMPARED_ROWS // size))):
            chosen = generator.permutation(num_rows)[:size]
            for row, result in zip(chosen.tolist(), run(chosen), strict=True):
                if known.setdefault(row, result) != result:
                    return False
    return True


def _limit(memory_bytes: int, seconds: int, writes_files: bool) -> None:
    # Limit the data segment, not the address space: libraries reserve far more addresses than they use.
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))  # the hard limit kills a child that ignores SIGXCPU
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Printed output goes to a file, too.
    max_bytes = _MAX_WRITTEN_BYTES if writes_files else _MAX_PRINTED_BYTES
    resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, max_bytes))
