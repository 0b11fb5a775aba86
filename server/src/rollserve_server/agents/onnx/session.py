"""Models run by ONNX Runtime in fixed numbers of rows, from and into arrays that stay.

What tries models in a process of its own loads this by itself: it knows nothing of the rest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import onnxruntime

__all__ = ["Runner", "aligned", "make_session"]

_ALIGNMENT = 64
_QUIET = 4
"""Of ONNX Runtime's log: errors come as exceptions."""


def make_session(
    graph: bytes, parameters: Mapping[str, np.ndarray], providers: Sequence[str]
) -> onnxruntime.InferenceSession:
    """A session with one thread.

    Args:
        graph: a serialized model.
        parameters: what it refers to.
        providers: what is to run it, the best first.

    Raises:
        Exception: ONNX Runtime refuses the model.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = _QUIET
    # Only what is there before the graph is optimized may be folded into other constants.
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(value) for value in parameters.values()]
    if values:
        options.add_external_initializers(list(parameters), values)
    return onnxruntime.InferenceSession(graph, options, list(providers))


def aligned(shape: Sequence[int], dtype: np.dtype, *, each_row: bool = False) -> np.ndarray:
    """Zeros that begin where a line of the cache does: code for vectors treats others differently at their ends.

    With `each_row`, so does each row, and there may be gaps between them.
    """
    row_bytes = math.prod(shape[1:]) * dtype.itemsize
    stride = -(-row_bytes // _ALIGNMENT) * _ALIGNMENT if each_row else row_bytes
    memory = np.zeros(shape[0] * stride + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    rows = memory[start : start + shape[0] * stride].reshape(shape[0], stride)[:, :row_bytes]
    return rows.view(dtype).reshape(shape)


class Runner:
    """Runs a model on M rows, in parts of fixed sizes.

    Attributes:
        inputs: by name (M, ...); write to them before each run.
        outputs: by name (M, ...); each run writes over them.
    """

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        inputs: Mapping[str, tuple[np.dtype, tuple[int, ...]]],
        outputs: Mapping[str, tuple[np.dtype, tuple[int, ...]]],
        num_rows: int,
        *,
        multiple: int = 1,
        most: int | None = None,
    ) -> None:
        """Takes a type and a row's shape for each name.

        The model is run on at most `most` rows at once, of which it has to be given a multiple of `multiple`: what is
        added counts for nothing.
        """
        size = -(-num_rows // multiple) * multiple
        step = size if most is None else most
        self._session = session
        padded_inputs, padded_outputs = (
            {name: aligned((size, *shape), dtype, each_row=step == 1) for name, (dtype, shape) in ports.items()}
            for ports in (inputs, outputs)
        )
        self._bindings = [
            self._bind(padded_inputs, padded_outputs, slice(start, start + step)) for start in range(0, size, step)
        ]
        self.inputs = {name: array[:num_rows] for name, array in padded_inputs.items()}
        self.outputs = {name: array[:num_rows] for name, array in padded_outputs.items()}

    def run(self) -> None:
        """Fills the outputs.

        Raises:
            Exception: the model fails.
        """
        for binding in self._bindings:
            self._session.run_with_iobinding(binding)

    def _bind(
        self, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray], rows: slice
    ) -> onnxruntime.IOBinding:
        binding = self._session.io_binding()
        for name, array in inputs.items():
            part = array[rows]
            binding.bind_input(name, "cpu", 0, part.dtype, part.shape, part.ctypes.data)
        for name, array in outputs.items():
            part = array[rows]
            binding.bind_output(name, "cpu", 0, part.dtype, part.shape, part.ctypes.data)
        return binding
