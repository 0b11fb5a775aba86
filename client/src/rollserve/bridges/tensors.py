"""Batches as tensors of PyTorch and arrays of JAX, and parameters of modules of PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollserve.bridges.trees import convert_arrays
from rollserve_wire.errors import mismatch
from rollserve_wire.extras import load

if TYPE_CHECKING:
    import numpy as np

__all__ = ["module_parameters", "tensor_of", "to_jax", "to_torch"]

_EXTRA_STATE = "_extra_state"
"""End of the name that `state_dict` gives to what `get_extra_state` of a module returns, which can be anything."""


def to_torch(columns: Any, device: Any = None, *, dtype: Any = None) -> Any:
    """Return columns as tensors of PyTorch, which share the memory of the arrays.

    Observations of MuJoCo's environments are float64, and PyTorch refuses to multiply them by float32 parameters:
    `dtype=torch.float32` converts them.

    >>> tensors = rollserve.bridges.to_torch(batch)  # doctest: +SKIP
    >>> tensors["observations"], tensors["agent_infos"]["log_prob"]  # doctest: +SKIP

    Args:
        columns: an array, a mapping of arrays such as a minibatch, an `EpisodeBatch`, or `Transitions`.
        device: device of the tensors. Other devices than the CPU have copies.
        dtype: dtype of floats of another dtype, which are copied, such as `torch.float32`; integers and truth values
            stay as they are. None for the dtypes of the arrays.

    Returns:
        A tensor for each array, in dicts with the names of the fields, leaves and infos. Fields without arrays, such as
        `account`, are left out. Read-only arrays, as in the parts of a stream, are copied, because PyTorch has no
        read-only tensors.

    Raises:
        ImportError: PyTorch is not installed.
        TypeError: columns of another type, or of a dtype that PyTorch does not have.
        ValueError: a dtype that is not one of floats.
    """
    torch = load("torch", "torch")
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise ValueError(f"dtype: {mismatch('a dtype of floats, such as torch.float32', dtype)}")
    return convert_arrays(columns, lambda name, array: tensor_of(torch, name, array, device, dtype))


def tensor_of(torch: Any, name: str, array: np.ndarray, device: Any = None, dtype: Any = None) -> Any:
    """Return a tensor with the array's memory, or with a copy if PyTorch cannot share it.

    Raises:
        TypeError: a dtype that PyTorch does not have.
    """
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    try:
        tensor = torch.from_numpy(array)
    except TypeError:
        raise TypeError(f"{name or 'columns'}: {mismatch('a dtype that PyTorch has', array.dtype)}") from None
    return tensor.to(device, dtype if tensor.is_floating_point() else None)


def module_parameters(module: Any) -> dict[str, np.ndarray]:
    """Return the parameters and buffers of a PyTorch module that are floats, by the names of `state_dict()`.

    The arrays of a module on the CPU share its memory, so that they have the newest values after each step of an
    optimizer, without another call.

    >>> sampler.update_agent(rollserve.bridges.module_parameters(policy))  # doctest: +SKIP
    """
    tensors = {name: value for name, value in module.state_dict().items() if not name.endswith(_EXTRA_STATE)}
    return {name: value.detach().cpu().numpy() for name, value in tensors.items() if value.is_floating_point()}


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
