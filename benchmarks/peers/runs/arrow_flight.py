"""Arrow Flight: a server in a process of its own answers DoGet with batches that are ready in memory."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow
from pyarrow import flight

from benchmarks.peers.runs.common.measuring import run

_STEP_BYTES = 1 << 20


@contextlib.contextmanager
def collecting(workload: str, num_steps: int, batch_bytes: int, keep: str) -> Iterator[Callable[[], int]]:
    """Start a server with `num_steps` steps of 1 MiB; `keep` says whether to copy batches into one array ("copy")."""
    command = [sys.executable, "-m", "benchmarks.peers.runs.arrow_flight", "serve", str(num_steps), str(batch_bytes)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:  # noqa: S603  # this module
        client = flight.connect(f"grpc://127.0.0.1:{server.stdout.readline().strip()}")
        expected = _result(num_steps)
        result = _copied(client, expected.size) if keep == "copy" else np.concatenate(_viewed(client))
        if not np.array_equal(result, expected):
            raise ValueError("the received bytes differ from the server's")
        del expected, result

        def collect() -> int:
            if keep == "copy":
                return _copied(client, num_steps * _STEP_BYTES).size // _STEP_BYTES
            return sum(view.size for view in _viewed(client)) // _STEP_BYTES

        yield collect
        client.close()
        server.terminate()


def _copied(client: flight.FlightClient, size: int) -> np.ndarray:
    result, begin = np.empty(size, np.uint8), 0
    for chunk in client.do_get(flight.Ticket(b"")):
        view = chunk.data.column(0).to_numpy(zero_copy_only=True)
        result[begin : begin + view.size] = view
        begin += view.size
    return result


def _viewed(client: flight.FlightClient) -> list[np.ndarray]:
    return [chunk.data.column(0).to_numpy(zero_copy_only=True) for chunk in client.do_get(flight.Ticket(b""))]


def _result(num_steps: int) -> np.ndarray:
    block = np.random.default_rng(0).integers(0, 256, 16 * _STEP_BYTES, np.uint8)
    return np.resize(block, num_steps * _STEP_BYTES)


class _Server(flight.FlightServerBase):
    """A server with one result."""

    def __init__(self, num_steps: int, batch_bytes: int) -> None:
        super().__init__("grpc://127.0.0.1:0")
        result = _result(num_steps)
        parts = [result[begin : begin + batch_bytes] for begin in range(0, result.size, batch_bytes)]
        self._batches = [pyarrow.record_batch([pyarrow.array(part)], ["bytes"]) for part in parts]

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.RecordBatchStream:
        """Return the result as a stream of batches."""
        reader = pyarrow.RecordBatchReader.from_batches(self._batches[0].schema, self._batches)
        return flight.RecordBatchStream(reader)


def _serve(num_steps: int, batch_bytes: int) -> None:
    server = _Server(num_steps, batch_bytes)
    print(server.port, flush=True)
    server.serve()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        _serve(int(sys.argv[2]), int(sys.argv[3]))
    else:
        run(collecting, ("pyarrow",))
