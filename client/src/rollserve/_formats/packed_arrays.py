"""Arrays that RLlib has packed into text: base64 of LZ4 of a pickled array, read without unpickling.

A pickle is a program. This module reads its opcodes as data: it knows the few that numpy writes for an array of numbers
and its dtype, calls nothing that the pickle names, and refuses all others.
"""

from __future__ import annotations

import base64
import binascii
import pickletools
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from rollserve._formats.sources import EXTRA, check_bytes, check_numbers
from rollserve_wire.errors import mismatch
from rollserve_wire.extras import load

__all__ = ["pack_array", "unpack_array"]

_MAX_PACKED_BYTES = 1 << 28
_DTYPE, _FROM_BUFFER, _RECONSTRUCT, _ARRAY = "dtype", "_frombuffer", "_reconstruct", "ndarray"
_NAMES = {
    (module, name)
    for name, modules in {
        _DTYPE: ("numpy",),
        _ARRAY: ("numpy",),
        _FROM_BUFFER: ("numpy.core.numeric", "numpy._core.numeric"),
        _RECONSTRUCT: ("numpy.core.multiarray", "numpy._core.multiarray"),
    }.items()
    for module in modules
}
"""Names of numpy that its pickles of arrays have."""
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_VALUES = {"BININT", "BININT1", "BININT2", "LONG1", "SHORT_BINUNICODE", "BINUNICODE"}
_VALUES |= {"SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "BYTEARRAY8"}
"""Opcodes whose argument is the value."""
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_MARK = object()


class _Name(NamedTuple):
    """Something that a pickle names."""

    name: str


class _Call(NamedTuple):
    """Function that a pickle would call, with the arguments, and the state that it would set."""

    name: str
    arguments: tuple[Any, ...]
    state: tuple[Any, ...] | None = None


def unpack_array(name: str, text: str) -> np.ndarray:
    """Return the array of numbers in a packed column.

    Args:
        name: name of the column, for errors.
        text: what RLlib's `pack` returned.

    Raises:
        ImportError: lz4 is not installed.
        ValueError: text that is no packed array, or an array of objects.
    """
    frame = load("lz4.frame", EXTRA)
    try:
        packed = base64.b64decode(text, validate=True)
        # The decompressor takes as much memory as it may return: 200 µs for the bound, so the frame's size is used.
        size = frame.get_frame_info(packed)["content_size"] or _MAX_PACKED_BYTES
        decompressor = frame.LZ4FrameDecompressor()
        data = decompressor.decompress(packed, max_length=min(size, _MAX_PACKED_BYTES))
    except (binascii.Error, RuntimeError, ValueError) as error:
        raise ValueError(f"{name}: {mismatch('a packed array', error)}") from None
    if not decompressor.eof:
        text = mismatch(f"a whole frame of at most {_MAX_PACKED_BYTES} bytes", "one that is cut or larger")
        raise ValueError(f"{name}: {text}")
    try:
        return check_numbers(name, _array(_read(data)))
    except (_UnknownError, IndexError, TypeError, ValueError) as error:
        hint = "" if str(error).startswith("expected") else "nothing is unpickled"
        raise ValueError(f"{name}: {mismatch('a packed array of numbers', error, hint)}") from None


def pack_array(array: np.ndarray) -> str:
    """Return an array as the text that RLlib's `unpack` reads."""
    import pickle  # writes only: what it writes here is an array of numbers

    frame = load("lz4.frame", EXTRA)
    data = pickle.dumps(array, protocol=5)
    return base64.b64encode(frame.compress(data)).decode("ascii")


class _UnknownError(Exception):
    """A pickle has more than an array of numbers."""


def _read(data: bytes) -> Any:
    """Return what the opcodes of a pickle describe."""
    stack: list[Any] = []
    memo: list[Any] = []
    opcodes: Iterable[tuple[pickletools.OpcodeInfo, Any, int | None]] = pickletools.genops(data)
    for opcode, argument, _ in opcodes:
        name = opcode.name
        if name == "MEMOIZE":
            memo.append(stack[-1])
        elif name in _VALUES:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name == "MARK":
            stack.append(_MARK)
        elif name == "TUPLE":
            start = len(stack) - 1 - stack[::-1].index(_MARK)
            stack[start:] = [tuple(stack[start + 1 :])]
        elif name in _TUPLES:
            count = _TUPLES[name]
            stack[-count:] = [tuple(stack[-count:])]
        elif name == "STACK_GLOBAL":
            module, found = stack[-2:]
            if (module, found) not in _NAMES:
                raise _UnknownError(f"a pickle that names {module}.{found}")
            stack[-2:] = [_Name(found)]
        elif name == "REDUCE":
            function, arguments = stack[-2:]
            if not isinstance(function, _Name) or not isinstance(arguments, tuple):
                raise _UnknownError("a pickle that calls what is no function")
            stack[-2:] = [_Call(function.name, arguments)]
        elif name == "BUILD":
            call, state = stack[-2:]
            if not isinstance(call, _Call) or not isinstance(state, tuple):
                raise _UnknownError("a pickle that sets the state of another object")
            stack[-2:] = [call._replace(state=state)]
        elif name not in ("PROTO", "FRAME", "STOP"):
            raise _UnknownError(f"a pickle with the opcode {name}")
    if len(stack) != 1:
        raise _UnknownError("a pickle of several values")
    return stack[0]


def _array(call: Any) -> np.ndarray:
    """Return the array that a call of one of numpy's functions would return."""
    if not isinstance(call, _Call):
        raise _UnknownError(f"a pickled {type(call).__name__}")
    if call.name == _FROM_BUFFER:
        data, dtype, shape, order = call.arguments
    elif call.name == _RECONSTRUCT and call.state is not None:
        _, shape, dtype, is_fortran, data = call.state
        order = "F" if is_fortran else "C"
    else:
        raise _UnknownError(f"a pickled {call.name}")
    found = _dtype(dtype)
    num_values = 1
    for size in shape:
        num_values *= size
    check_bytes("array", num_values * found.itemsize)
    if num_values * found.itemsize != len(data):
        raise _UnknownError(f"{len(data)} bytes for shape {shape} of {found}")
    return np.frombuffer(data, found).reshape(shape, order=order)


def _dtype(call: Any) -> np.dtype:
    """Return the dtype that a pickle describes by its kind, size and byte order."""
    if not (isinstance(call, _Call) and call.name == _DTYPE and isinstance(call.arguments[0], str)):
        raise _UnknownError("no dtype")
    text = call.arguments[0]
    if text[:1] not in "biufc":
        raise _UnknownError(f"dtype {text}")
    is_big = call.state is not None and call.state[1] == ">"
    return np.dtype(text).newbyteorder(">" if is_big else "<")
