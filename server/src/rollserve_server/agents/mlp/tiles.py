"""Tiles: matrix products that give a row the same bits whatever its neighbours and its position.

BLAS sums in an order that depends on the number of rows and, within a product, on the part of the kernel that a row
falls into: OpenBLAS's kernels for Haswell and Zen take twelve rows at once, then four. With continuous actions, one
different bit makes a different episode. So products always have the same small number of rows, a tile, which is padded
with rows that nobody reads.
"""

from __future__ import annotations

import functools

import numpy as np

__all__ = ["tile_rows"]

_CANDIDATES = (8, 4, 2)
_NUM_TRIALS = 4


@functools.cache
def tile_rows(num_inputs: int, num_outputs: int) -> int:
    """Return the number of float32 rows to multiply at once with a matrix of this shape.

    This is the largest of 8, 4, 2 and 1 that makes a row's bits independent of the other rows, found by trying on this
    machine. Among OpenBLAS 0.3.31's kernels for x86-64, all pass with 8 rows; those for Haswell and Zen fail from 12.
    """
    generator = np.random.default_rng(0)
    matrix = generator.standard_normal((num_inputs, num_outputs), np.float32)
    for num_rows in _CANDIDATES:
        if all(_is_independent(matrix, num_rows, generator) for _ in range(_NUM_TRIALS)):
            return num_rows
    return 1


def _is_independent(matrix: np.ndarray, num_rows: int, generator: np.random.Generator) -> bool:
    """Whether a row's product is the same in each position, with other neighbours each time."""
    row = generator.standard_normal(matrix.shape[0], np.float32)
    products = []
    for position in range(num_rows):
        rows = generator.standard_normal((num_rows, matrix.shape[0]), np.float32)
        rows[position] = row
        products.append(np.matmul(rows, matrix)[position])
    return all(np.array_equal(product, products[0]) for product in products)
