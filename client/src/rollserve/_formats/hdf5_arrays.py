"""Arrays of HDF5's datasets, contiguous or in chunks, for many groups at once.

Layout of chunks: HDF5 File Format Specification 3.0, section III.A.1 (version 1 trees of kind 1).
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import TYPE_CHECKING

import numpy as np

from rollserve._formats.file_bytes import FileRegion

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rollserve._formats.hdf5_headers import DatasetNumbers

__all__ = ["Arrays"]

_MAX_CHUNKS, _MAX_CHUNK_BYTES = 64, (1 << 32) - 1
"""Chunks of a tree with one node, as HDF5 makes them by default, and bytes of a chunk."""
_HEAD_BYTES, _WORD_BYTES = 24, 8
_SIGNATURE = b"TREE\1\0"
"""A node of chunks, which is the whole tree."""


class Arrays:
    """Arrays of one dataset in N groups. Each is in pieces of one shape, in the order of rows, then columns and so on.

    An array that is larger than the file, or whose size or chunks do not fit its rows, is left to HDF5.

    Args:
        numbers: numbers of the dataset.
        region: region of the file.
        dtype: dtype of all arrays.
        row_shape: shape of a row of all arrays, without zeros.

    Attributes:
        is_alike: (N,) bool, whether the array can be loaded.
        num_bytes: (N,), size of the array; 0 if it cannot be loaded.
    """

    def __init__(
        self, numbers: DatasetNumbers, region: FileRegion, dtype: np.dtype, row_shape: tuple[int, ...]
    ) -> None:
        self._dtype = dtype
        row_bytes = dtype.itemsize * math.prod(row_shape)
        is_alike = (numbers.rows > 0) & (numbers.rows <= region.file.size // row_bytes)
        self.num_bytes = np.where(is_alike, numbers.rows, 0) * row_bytes
        shapes = np.empty((len(is_alike), 1 + len(row_shape)), np.int64)
        shapes[:, 0], shapes[:, 1:] = numbers.rows, row_shape
        if numbers.chunks is None:
            pieces, sizes, places = shapes, self.num_bytes, numbers.places[:, None]
            is_alike &= numbers.sizes == sizes
        else:
            pieces = numbers.chunks
            is_alike &= (pieces > 0).all(axis=1)
            is_alike &= pieces.prod(axis=1, dtype=float) <= _MAX_CHUNK_BYTES // dtype.itemsize
            sizes = np.where(is_alike, pieces.prod(axis=1), 0) * dtype.itemsize
            places = _chunk_places(region, numbers.places, shapes, pieces, sizes)
        is_alike &= (places[:, 0] >= 0) & (places <= region.file.size - sizes[:, None]).all(axis=1)
        self.is_alike = is_alike
        self._shapes, self._pieces = shapes.tolist(), pieces.tolist()
        self._sizes, self._places, self._region = sizes, places, region
        # Of each group: the size of its pieces, their places in the file, and their offsets in the region.
        self._located: list[tuple[int, list[int], list[int]]] = []

    def locate(self, is_wanted: NDArray[np.bool_]) -> None:
        """Find the arrays of some groups in the region. If most are elsewhere, read them into a region of their own.

        Args:
            is_wanted: (N,), which groups are loaded later; all have to be alike.
        """
        sizes = np.broadcast_to(self._sizes[:, None], self._places.shape)
        offsets = self._region.offsets(self._places, sizes)
        is_piece = is_wanted[:, None] & (self._places >= 0)
        is_far = is_piece & (offsets < 0)
        if 2 * is_far.sum() > is_piece.sum():
            starts, positions = np.unique(self._places[is_far], return_index=True)
            self._region = FileRegion(self._region.file, starts, starts + sizes[is_far][positions])
            offsets = self._region.offsets(self._places, sizes)
        self._located = list(zip(self._sizes.tolist(), self._places.tolist(), offsets.tolist(), strict=True))

    def load(self, position: int) -> np.ndarray:
        """Return the array of a group that was located, which is a view of the region if it is there in one piece.

        Raises:
            ValueError: the file was cut off.
        """
        shape, piece = tuple(self._shapes[position]), tuple(self._pieces[position])
        size, places, offsets = self._located[position]
        if piece == shape:
            return self._piece(places[0], size, offsets[0], shape)
        array = np.empty(shape, self._dtype)
        for (window, part), place, offset in zip(_windows(shape, piece), places, offsets, strict=False):
            array[window] = self._piece(place, size, offset, piece)[part]
        return array

    def _piece(self, place: int, size: int, offset: int, shape: tuple[int, ...]) -> np.ndarray:
        return self._region.array(place, size, offset).view(self._dtype).reshape(shape)


@functools.lru_cache(maxsize=64)
def _windows(shape: tuple[int, ...], piece: tuple[int, ...]) -> list[tuple[tuple[slice, ...], tuple[slice, ...]]]:
    """Return for each piece where it is in an array, and which part of the piece this is."""
    sides = [
        [(slice(at, at + size), slice(0, min(size, end - at))) for at in range(0, end, size)]
        for end, size in zip(shape, piece, strict=True)
    ]
    return [(tuple(w for w, _ in corner), tuple(p for _, p in corner)) for corner in itertools.product(*sides)]


def _chunk_places(
    region: FileRegion,
    trees: NDArray[np.int64],
    shapes: NDArray[np.int64],
    chunks: NDArray[np.int64],
    sizes: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return the places of N arrays' chunks, (N, P) with P of at least 1; -1 if the tree has not exactly these chunks.

    The node of a tree has for each chunk its size, the filters that were left out, the index of its first number, 0 for
    the first byte of this, and the place.

    Args:
        region: region of the file.
        trees: (N,), places of the trees.
        shapes: (N, D), shapes of the arrays.
        chunks: (N, D), shapes of chunks.
        sizes: (N,), bytes of a chunk; 0 for arrays that are not looked at.
    """
    grids = -(-shapes // np.maximum(chunks, 1))
    counts = np.where(sizes > 0, grids.prod(axis=1), 0)
    counts[counts > _MAX_CHUNKS] = 0
    index = np.arange(max(counts.max(initial=0), 1))
    num_words = shapes.shape[1] + 3
    nodes = region.rows(trees, _HEAD_BYTES + _WORD_BYTES * num_words * len(index))
    words = np.ascontiguousarray(nodes[:, _HEAD_BYTES:]).view("<i8").reshape(len(trees), len(index), num_words)
    expected = np.zeros((*words.shape[:2], num_words - 1), np.int64)
    expected[:, :, 0] = sizes[:, None]
    expected[:, :, 1:-1] = _indices(grids, index) * chunks[:, None]
    is_chunk = index < counts[:, None]
    is_right = ~is_chunk | (words[:, :, :-1] == expected).all(axis=2) & (words[:, :, -1] >= 0)
    is_whole = is_right.all(axis=1) & (nodes[:, :_HEAD_BYTES] == _tree_heads(counts)).all(axis=1)
    places: NDArray[np.int64] = np.where(is_whole[:, None] & is_chunk, words[:, :, -1], -1)
    return places


def _indices(grids: NDArray[np.int64], index: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where the chunks of some numbers, (P,), are in N grids, (N, D): (N, P, D)."""
    ones = np.ones((len(grids), 1), np.int64)
    strides = np.cumprod(np.hstack([ones, grids[:, :0:-1]]), axis=1)[:, ::-1]
    # Where a product is beyond an integer, the array is larger than the file.
    found: NDArray[np.int64] = index[:, None] // np.maximum(strides, 1)[:, None] % np.maximum(grids, 1)[:, None]
    return found


def _tree_heads(counts: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return how trees of one node with some chunks each begin, (N, 24): their number, and no nodes at the sides."""
    heads = np.full((len(counts), _HEAD_BYTES), 0xFF, np.uint8)
    heads[:, : len(_SIGNATURE)] = np.frombuffer(_SIGNATURE, np.uint8)
    heads[:, len(_SIGNATURE) : 8] = counts.astype("<u2")[:, None].view(np.uint8)
    return heads
