"""Batches as arrays of JAX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollserve.bridges.trees import convert_arrays
from rollserve_wire.errors import mismatch
from rollserve_wire.extras import load

if TYPE_CHECKING:
    import numpy as np

__all__ = ["to_jax"]


def to_jax(columns: Any) -> Any:
    """Return columns as arrays of JAX, by DLPack.

    On the CPU, arrays whose memory JAX can use are shared: do not write to the columns afterwards. Without
    `jax_enable_x64`, JAX has no 64-bit numbers, so that float64 and int64 become float32 and int32, copied.

    >>> arrays = rollserve.bridges.to_jax(batch)  # doctest: +SKIP

    Args:
        columns: an array, a mapping of arrays such as a minibatch, an `EpisodeBatch`, or `Transitions`.

    Returns:
        An array for each array, in dicts with the names of the fields, leaves and infos.

    Raises:
        ImportError: JAX is not installed.
        TypeError: columns of another type, or of a dtype that JAX does not have.
    """
    jax = load("jax", "jax")

    def convert(name: str, array: np.ndarray) -> Any:
        if jax.dtypes.canonicalize_dtype(array.dtype) != array.dtype or not array.flags.writeable:
            return jax.numpy.asarray(array)  # of another dtype; and numpy exports no read-only memory
        return jax.dlpack.from_dlpack(array)

    def checked(name: str, array: np.ndarray) -> Any:
        if array.dtype.kind not in "biufc":
            raise TypeError(f"{name or 'columns'}: {mismatch('a dtype that JAX has', array.dtype)}")
        return convert(name, array)

    return convert_arrays(columns, checked)
