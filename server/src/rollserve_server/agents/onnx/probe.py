"""The probe of a model, run in a sandbox as a script."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from onnxruntime import InferenceSession


def _load(path: str) -> Any:
    """Load a module by its path from here, without the packages around it: importing them takes about a second."""
    file = Path(__file__).parent / path
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None  # noqa: S101
    assert spec.loader is not None  # noqa: S101
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_sandbox = _load("../sandbox_child.py")


def probe(
    graph: bytes,
    parameters: dict[str, np.ndarray],
    providers: list[str],
    rows: dict[str, np.ndarray],
) -> dict[str, Any]:
    """Make a session, and run it on rows in several numbers and orders.

    Args:
        graph: serialized model, as for `make_session`.
        parameters: values of the model's references, by name.
        providers: execution providers, the best first.
        rows: more than 64 rows of each input.

    Returns:
        `outputs`, dtype and shape of a row by name, and `batching`, as in `Batching`.

    Raises:
        AgentRefusedError: the model is refused.
    """
    running = _load("session.py")
    try:
        session = running.make_session(graph, parameters, providers)
    except Exception as error:
        raise _sandbox.AgentRefusedError(f"ONNX Runtime refuses the model: {error}") from error
    outputs = _outputs(session, rows)
    sessions = [session]
    with contextlib.suppress(Exception):  # a model may refuse perturbed parameters
        sessions.append(running.make_session(graph, _sandbox.perturbed(parameters), providers))
    inputs = {name: (array.dtype, array.shape[1:]) for name, array in rows.items()}

    def bits(session: InferenceSession, chosen: np.ndarray) -> list[bytes]:
        """Return the bits of each chosen row's results."""
        try:
            runner = running.Runner(session, inputs, outputs, len(chosen))
            for name, column in runner.inputs.items():
                column[...] = rows[name][chosen]
            runner.run()
        except Exception as error:
            raise _failed(len(chosen), error) from error
        return [b"".join(column[row].tobytes() for column in runner.outputs.values()) for row in range(len(chosen))]

    runs = [functools.partial(bits, each) for each in sessions]
    described = {name: (dtype.str, shape) for name, (dtype, shape) in outputs.items()}
    return {"outputs": described, "batching": _sandbox.find_batching(runs, len(next(iter(rows.values()))))}


def _outputs(session: InferenceSession, rows: dict[str, np.ndarray]) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
    """Return dtype and shape of a row of each output."""
    names = [output.name for output in session.get_outputs()]
    found = []
    for num_rows in (2, 3):
        try:
            results = session.run(names, {name: array[:num_rows] for name, array in rows.items()})
        except Exception as error:
            raise _failed(num_rows, error) from error
        for name, result in zip(names, results, strict=True):
            if not isinstance(result, np.ndarray) or result.dtype.kind not in "biuf":
                raise _sandbox.AgentRefusedError(f"output {name!r}: expected a tensor of numbers, got {_kind(result)}")
            if result.ndim == 0 or len(result) != num_rows:
                expected = f"expected the batch of {num_rows} rows as first axis, got shape {result.shape}"
                raise _sandbox.AgentRefusedError(f"output {name!r}: {expected}")
        found.append({name: (result.dtype, result.shape[1:]) for name, result in zip(names, results, strict=True)})
    if found[0] != found[1]:
        raise _sandbox.AgentRefusedError("shapes of outputs' rows depend on the number of rows")
    return found[0]


def _failed(num_rows: int, error: Exception) -> Exception:
    refused: Exception = _sandbox.AgentRefusedError(f"the model fails with {num_rows} rows: {error}")
    return refused


def _kind(result: Any) -> str:
    return f"dtype {result.dtype}" if isinstance(result, np.ndarray) else type(result).__name__


if __name__ == "__main__":
    _sandbox.answer(probe)
