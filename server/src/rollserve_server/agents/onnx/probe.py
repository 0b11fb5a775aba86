"""Tries a model in a process of its own; see `sandbox.py`."""

from __future__ import annotations

import contextlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

    from rollserve_server.agents.onnx.session import Runner


def _load(path: str) -> Any:
    """Load a module by its path from here, without the packages around it: importing them takes a second."""
    file = Path(__file__).parent / path
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None  # noqa: S101
    assert spec.loader is not None  # noqa: S101
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_sandbox = _load("../sandbox/child.py")


def probe(
    graph: bytes,
    parameters: dict[str, np.ndarray],
    providers: list[str],
    rows: dict[str, np.ndarray],
) -> dict[str, Any]:
    """Makes a session and runs it on some rows, in several numbers and orders.

    Args:
        graph: as of `make_session`.
        parameters: likewise.
        providers: likewise.
        rows: for each input more than 64 rows.

    Returns:
        `outputs`, a type and a row's shape for each name, and `batching`, as of Batching.

    Raises:
        RefusedError: the model cannot be used.
    """
    running = _load("session.py")
    try:
        session = running.make_session(graph, parameters, providers)
    except Exception as error:
        raise _sandbox.RefusedError(f"ONNX Runtime refuses it: {error}") from error
    outputs = _outputs(session, rows)
    sessions = [session]
    with contextlib.suppress(Exception):  # what has come is what has to work
        sessions.append(running.make_session(graph, _sandbox.changed(parameters), providers))
    ports = {name: (array.dtype, array.shape[1:]) for name, array in rows.items()}
    tried = _Probe(sessions, rows, ports, outputs, running.Runner)
    described = {name: (dtype.str, shape) for name, (dtype, shape) in outputs.items()}
    return {"outputs": described, "batching": tried.find_batching()}


def _outputs(session: InferenceSession, rows: dict[str, np.ndarray]) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
    """The type and a row's shape of each output."""
    names = [output.name for output in session.get_outputs()]
    found = []
    for num_rows in (2, 3):
        try:
            results = session.run(names, {name: array[:num_rows] for name, array in rows.items()})
        except Exception as error:
            raise _sandbox.RefusedError(f"it fails with {num_rows} rows: {error}") from error
        for name, result in zip(names, results, strict=True):
            if not isinstance(result, np.ndarray) or result.dtype.kind not in "biuf":
                raise _sandbox.RefusedError(f"output {name!r} is no tensor of numbers")
            if result.ndim == 0 or len(result) != num_rows:
                came = f"output {name!r} has shape {result.shape} for {num_rows} rows"
                raise _sandbox.RefusedError(f"{came}: the first axis of each output has to be the batch")
        found.append({name: (result.dtype, result.shape[1:]) for name, result in zip(names, results, strict=True)})
    if found[0] != found[1]:
        raise _sandbox.RefusedError("the shapes of its outputs' rows depend on the number of rows")
    return found[0]


class _Probe:
    """Runs a model on rows out of many, and compares what it gives for each row with what it gave before.

    With the parameters that have come, and with others: what zeros give shows no difference.
    """

    def __init__(
        self,
        sessions: list[InferenceSession],
        rows: dict[str, np.ndarray],
        inputs: dict[str, Any],
        outputs: dict[str, Any],
        runner: type[Runner],
    ) -> None:
        self._sessions, self._rows, self._inputs, self._outputs = sessions, rows, inputs, outputs
        self._runner = runner
        self._num_rows = len(next(iter(rows.values())))

    def find_batching(self) -> tuple[int, int]:
        """In which numbers of rows a row's bits depend on nothing else."""
        batching: tuple[int, int] = _sandbox.find_batching(self._run, self._num_rows)
        return batching

    def _run(self, chosen: np.ndarray) -> list[bytes]:
        """The bits of each chosen row's results."""
        session, *others = self._sessions
        try:
            results = [self._bits(session, chosen)]
        except Exception as error:
            raise _sandbox.RefusedError(f"it fails with {len(chosen)} rows: {error}") from error
        for other in others:
            with contextlib.suppress(Exception):
                results.append(self._bits(other, chosen))
        return [b"".join(row) for row in zip(*results, strict=True)]

    def _bits(self, session: InferenceSession, chosen: np.ndarray) -> list[bytes]:
        runner = self._runner(session, self._inputs, self._outputs, len(chosen))
        for name, column in runner.inputs.items():
            column[...] = self._rows[name][chosen]
        runner.run()
        return [b"".join(column[row].tobytes() for column in runner.outputs.values()) for row in range(len(chosen))]


if __name__ == "__main__":
    _sandbox.answer(probe)
