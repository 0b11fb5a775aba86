"""Arrays that RLlib has packed into text: base64 of LZ4 of a pickled array, read without unpickling.

A pickle is a program. This module reads its opcodes as data: it knows the few that numpy writes for an array of numbers
and its dtype, calls nothing that the pickle names, and refuses all others.
"""

from __future__ import annotations

import base64
import binascii
import pickletools
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from rollserve._formats.sources import EXTRA, check_bytes, check_numbers
from rollserve.bridges.loading import load
from rollserve_wire.errors import mismatch

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
_INTEGERS = {"BININT": "<i", "BININT1": "<B", "BININT2": "<H"}
_TEXTS = {"SHORT_BINUNICODE": "<B", "BINUNICODE": "<I"}
_BYTES = {"LONG1": "<B", "SHORT_BINBYTES": "<B", "BINBYTES": "<I", "BINBYTES8": "<Q", "BYTEARRAY8": "<Q"}
_OTHERS = {"PROTO": "<B", "FRAME": "<Q", "BINGET": "<B", "LONG_BINGET": "<I"}
_ARGUMENTS = {name: struct.Struct(form) for name, form in (_INTEGERS | _TEXTS | _BYTES | _OTHERS).items()}
"""Numbers behind opcodes: the argument, or the size of a text or of bytes."""
_OPCODES = {ord(code.code): (code.name, _ARGUMENTS.get(code.name)) for code in pickletools.opcodes}
_VALUES = _INTEGERS.keys() | _TEXTS.keys() | _BYTES.keys()
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
    except (_UnknownError, IndexError, TypeError, ValueError, struct.error) as error:
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
    for name, argument in _opcodes(data):
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
        elif name not in ("PROTO", "FRAME"):
            raise _UnknownError(f"a pickle with the opcode {name}")
    if len(stack) != 1:
        raise _UnknownError("a pickle of several values")
    return stack[0]


def _opcodes(data: bytes) -> Iterator[tuple[str, Any]]:
    """Yield the names of a pickle's opcodes up to its end, and their arguments, of which bytes are views."""
    view, position = memoryview(data), 0
    while position < len(data):
        name, form = _OPCODES.get(data[position], (str(data[position]), None))
        position += 1
        if name == "STOP":
            return
        if form is None:
            yield name, None
            continue
        (number,) = form.unpack_from(data, position)
        position += form.size
        if name not in _TEXTS and name not in _BYTES:
            yield name, number
            continue
        content = view[position : position + number]
        position += number
        if len(content) < number:
            break
        if name in _TEXTS:
            yield name, str(content, "utf-8")
        else:
            yield name, int.from_bytes(content, "little", signed=True) if name == "LONG1" else content
    raise _UnknownError("a pickle that is cut off")


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
