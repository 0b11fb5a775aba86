"""Models run by ONNX Runtime in fixed numbers of rows, with inputs and outputs in preallocated arrays.

The probe of models loads this module by its path, so it imports nothing of this package.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import onnxruntime

__all__ = ["Runner", "make_session"]

_ALIGNMENT = 64  # bytes of a cache line
_FATAL = 4  # severity of ONNX Runtime's log: errors are exceptions anyway


def make_session(
    graph: bytes, parameters: Mapping[str, np.ndarray], providers: Sequence[str]
) -> onnxruntime.InferenceSession:
    """Make a session with one thread.

    Args:
        graph: serialized model.
        parameters: values of the model's references, by name.
        providers: execution providers, the best first.

    Raises:
        Exception: ONNX Runtime refuses the model.
    """
    import onnxruntime  # imported late: it takes a while, and only models need it

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = _FATAL
    # Otherwise bytes 4 to 7, which a name in the model may hold, choose the format: one file could be two models.
    options.add_session_config_entry("session.load_model_format", "ONNX")
    # Set before the graph is optimized, so that the optimizer can fold them into other constants.
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(value) for value in parameters.values()]
    if values:
        options.add_external_initializers(list(parameters), values)
    return onnxruntime.InferenceSession(graph, options, list(providers))


def _aligned(shape: Sequence[int], dtype: np.dtype, *, each_row: bool = False) -> np.ndarray:
    """Return zeros aligned to a cache line, because vector code treats the ends of unaligned arrays differently.

    With `each_row`, each row is aligned, with gaps between rows where needed.
    """
    row_bytes = math.prod(shape[1:]) * dtype.itemsize
    stride = -(-row_bytes // _ALIGNMENT) * _ALIGNMENT if each_row else row_bytes
    memory = np.zeros(shape[0] * stride + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    rows = memory[start : start + shape[0] * stride].reshape(shape[0], stride)[:, :row_bytes]
    return rows.view(dtype).reshape(shape)


class Runner:
    """Runs a model on M rows, in batches of a fixed size.

    Attributes:
        inputs: arrays (M, ...) by name; the caller writes to them before each run.
        outputs: arrays (M, ...) by name; each run overwrites them.
    """

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        inputs: Mapping[str, tuple[np.dtype, tuple[int, ...]]],
        outputs: Mapping[str, tuple[np.dtype, tuple[int, ...]]],
        num_rows: int,
        *,
        multiple: int = 1,
        max_rows: int | None = None,
    ) -> None:
        """Allocate the arrays.

        Args:
            session: session of the model.
            inputs: dtype and shape of a row of each input.
            outputs: dtype and shape of a row of each output.
            num_rows: M.
            multiple: divisor of the number of rows in each batch; missing rows are padding.
            max_rows: largest number of rows in a batch; None for all at once.
        """
        size = -(-num_rows // multiple) * multiple
        step = size if max_rows is None else max_rows
        self._session = session
        padded_inputs, padded_outputs = (
            {name: _aligned((size, *shape), dtype, each_row=step == 1) for name, (dtype, shape) in ports.items()}
            for ports in (inputs, outputs)
        )
        self._bindings = [
            self._bind(padded_inputs, padded_outputs, slice(start, start + step)) for start in range(0, size, step)
        ]
        self.inputs = {name: array[:num_rows] for name, array in padded_inputs.items()}
        self.outputs = {name: array[:num_rows] for name, array in padded_outputs.items()}

    def run(self) -> None:
        """Compute the outputs.

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
