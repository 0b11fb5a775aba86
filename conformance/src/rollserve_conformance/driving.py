"""A plain client of sessions, which says what the requests and results of another one have to be."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from rollserve_conformance.description import describe_account, describe_columns, describe_segments, describe_step
from rollserve_conformance.operations import divided_steps, driven_actions, request_of
from rollserve_conformance.reading import concatenated_batches, joined_segments, read_array, read_batch, with_gaps
from rollserve_wire.v1 import sampler_service_pb2 as pb

__all__ = ["PlainSession"]

_Json = Mapping[str, Any]
_ROW_COLUMNS = ("episode_indices", "rewards", "environment_seeds")


class PlainSession:
    """A session of the kit's own, with the operations of a case. Its rows step together, and nobody else takes it up.

    Attributes:
        requests: what it has sent.
    """

    def __init__(self, operation: _Json, method: Callable[[Iterator[pb.DriveEnvironmentsRequest]], Any]) -> None:
        """Begin the session.

        Args:
            operation: the operation `drive` of a case.
            method: begins the RPC, given the requests.
        """
        self.requests: list[pb.DriveEnvironmentsRequest] = []
        self._resets_in_next_step = operation.get("next_step", False)
        self._waiting: queue.SimpleQueue[pb.DriveEnvironmentsRequest | None] = queue.SimpleQueue()
        self._lease_seconds = operation.get("lease_seconds", 0)
        first: Any = request_of(operation)
        self.requests.append(first)
        together: Any = request_of({**operation, "min_ready": 0})
        self._waiting.put(together)
        self._call = method(iter(self._waiting.get, None))
        self._step: dict[str, Any] | None = None
        self._batches: list[dict[str, Any]] = []  # of the present round
        self._rounds: list[dict[str, Any]] = []  # not taken
        self._num_asked = self._num_recorded = 0
        self._account: dict[str, Any] | None = None

    def result(self, operation: _Json) -> dict[str, Any]:
        """Perform an operation of the session; return its result.

        Raises:
            grpc.RpcError: the session has failed.
        """
        match operation["do"]:
            case "observe":
                return {"step": describe_step(self._present_step())}
            case "step":
                return {"step": describe_step(self._next_step(operation))}
            case "rows":
                shown = [self._present_step(), *map(self._next_step, divided_steps(operation))]
                observations = {
                    name: np.stack([step["observations"][name] for step in shown]) for name in shown[0]["observations"]
                }
                rewards = {"": np.stack([step["rewards"] for step in shown])}
                columns = {"observations": observations, "rewards": rewards}
                return {"rows": {name: describe_columns(each) for name, each in columns.items()}}
            case "resume":
                if operation.get("after_seconds", 0) > self._lease_seconds:
                    self._step = None
                    self._call.cancel()  # a session whose lease is over has ended
                return {}
            case "batch":
                if self._num_recorded < self._num_asked and self._account is None:
                    self._send(pb.DriveEnvironmentsRequest(fragment_end=pb.FragmentEnd()))
                while self._num_recorded < self._num_asked:
                    self._read()
                rounds, self._rounds = self._rounds, []
                return {"batch": describe_segments(concatenated_batches(rounds))}
            case _:
                if self._lease_seconds:
                    self._send(pb.DriveEnvironmentsRequest(session_end=pb.SessionEnd()))
                else:
                    self._waiting.put(None)
                while self._read():
                    pass
                return {"account": self._account}

    def close(self) -> None:
        """Cancel the session unless it has ended."""
        self._call.cancel()
        self._waiting.put(None)

    def _send(self, request: pb.DriveEnvironmentsRequest) -> None:
        self.requests.append(request)
        self._waiting.put(request)

    def _next_step(self, operation: _Json) -> dict[str, Any]:
        """Act in all rows; return what follows."""
        step = self._present_step()
        idle = np.isin(np.arange(len(step["rewards"])), step["ended_rows"] if self._resets_in_next_step else [])
        self._num_asked += int((~idle).sum())
        self._send(driven_actions(operation, step["number"], idle))
        self._step = None
        return self._present_step()

    def _present_step(self) -> dict[str, Any]:
        while self._step is None:
            self._read()
        return self._step

    def _read(self) -> bool:
        """Read a message; return False at the end."""
        message = next(self._call, None)
        if message is None:
            return False
        match message.WhichOneof("content"):
            case "step":
                self._step = _read_step(message.step)
            case "batch":
                self._batches.append(read_batch(message.batch))
            case "round":
                self._num_recorded += message.round.step_count
                joined, _ = joined_segments(concatenated_batches(self._batches))
                self._rounds.append(joined)
                self._batches = []
            case "account":
                self._account = describe_account(message.account)
                if self._lease_seconds:
                    self._send(pb.DriveEnvironmentsRequest(session_end=pb.SessionEnd(has_account=True)))
        return True


def _read_step(message: pb.DrivenStep) -> dict[str, Any]:
    """Return the arrays of a step, by the names of a step's description."""
    workers = message.workers
    num_rows, num_ended = ([len(getattr(rows, name)) for rows in workers] for name in ("episode_indices", "ended_rows"))
    starts = np.cumsum([0, *num_rows])
    joined = {name: np.concatenate([np.array(getattr(rows, name)) for rows in workers]) for name in _ROW_COLUMNS}
    ended = np.concatenate(
        [start + np.array(rows.ended_rows, int) for start, rows in zip(starts, workers, strict=False)]
    )
    step: dict[str, Any] = {
        "number": message.step,
        "episode_indices": joined["episode_indices"],
        "rewards": joined["rewards"] if len(joined["rewards"]) else np.zeros(starts[-1]),
        "ended_rows": ended,
        "env_seeds": joined["environment_seeds"],
    }
    for name in ("terminated", "truncated"):
        step[name] = np.zeros(starts[-1], np.bool_)
        step[name][ended] = [flag for rows in workers for flag in getattr(rows, name)]
    step["observations"] = _leaves([rows.observations for rows in workers])
    ending = [rows.last_observations for rows in workers if rows.ended_rows]
    none = {name: column[:0] for name, column in step["observations"].items()}
    step["last_observations"] = _leaves(ending) if ending else none
    step["infos"] = with_gaps([_arrays(rows.infos) for rows in workers], num_rows)
    step["last_infos"] = with_gaps([_arrays(rows.last_infos) for rows in workers], num_ended)
    return step


def _arrays(tensors: Any) -> dict[str, np.ndarray]:
    return {each.name: read_array(each.tensor) for each in tensors}


def _leaves(parts: Any) -> dict[str, np.ndarray]:
    arrays = [_arrays(part) for part in parts]
    return {name: np.concatenate([each[name] for each in arrays]) for name in arrays[0]}
