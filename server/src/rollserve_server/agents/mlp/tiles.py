"""Matrix products that give each row the same bits whatever its neighbours are and wherever it stands.

BLAS adds up in another order for other numbers of rows, and within one product for rows that fall into another part
of its kernel: OpenBLAS's kernels for Haswell and Zen take twelve rows at once, then four. With continuous actions one
bit is another episode. Products of a fixed, small number of rows cure it: a tile, filled up with rows that nobody
reads.
"""

from __future__ import annotations

import functools

import numpy as np

__all__ = ["tile_rows"]

_CANDIDATES = (8, 4, 2)
_NUM_TRIALS = 4


@functools.cache
def tile_rows(num_inputs: int, num_outputs: int) -> int:
    """How many rows of float32 to multiply at once with a matrix of this shape.

    The most, up to 8, that make no difference to a row. Found by trying on this machine: of the kernels of OpenBLAS
    0.3.31 for x86-64, all take 8, and those for Haswell and Zen fail from 12.
    """
    generator = np.random.default_rng(0)
    matrix = generator.standard_normal((num_inputs, num_outputs), np.float32)
    for num_rows in _CANDIDATES:
        if all(_independent(matrix, num_rows, generator) for _ in range(_NUM_TRIALS)):
            return num_rows
    return 1


def _independent(matrix: np.ndarray, num_rows: int, generator: np.random.Generator) -> bool:
    """Whether a row's product is the same in every place, with other neighbours each time."""
    row = generator.standard_normal(matrix.shape[0], np.float32)
    products = []
    for place in range(num_rows):
        rows = generator.standard_normal((num_rows, matrix.shape[0]), np.float32)
        rows[place] = row
        products.append(np.matmul(rows, matrix)[place])
    return all(np.array_equal(product, products[0]) for product in products)
