"""The rows of a worker: environments that are made, reset and stepped as its requests ask."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from rollserve_env_host.messages import rows_pb2
from rollserve_env_host.real_time import RealTime
from rollserve_env_host.spaces import Values, array_of, space_message, tensor_message

if TYPE_CHECKING:
    from rollserve_env_host.environments import Environment

__all__ = ["Rows"]


class Rows:
    """The rows of one connection."""

    def __init__(self, make: Callable[[Mapping[str, Any]], Environment]) -> None:
        """Begin without rows, given what makes an environment with arguments."""
        self._make = make
        self._envs: List[Optional[Environment]] = []  # None: failed

    def answer(self, request: rows_pb2.Request) -> rows_pb2.Response:
        """Return the answer to a request."""
        kind, response = request.WhichOneof("content"), rows_pb2.Response(number=request.number)
        try:
            if kind == "make":
                response.made.CopyFrom(self._made(request.make))
            elif kind == "reset":
                response.results.CopyFrom(self._reset(request.reset))
            elif kind == "step":
                self._step(request.step, response.results)
            else:
                raise ValueError("request: expected one of make, reset and step, got {}".format(kind))
        except Exception as error:
            response.refusal.text = _described(error)
        return response

    def close(self) -> None:
        """Close the environments."""
        for row, env in enumerate(self._envs):
            if env is not None:
                self._break(row)

    def _made(self, make: rows_pb2.Make) -> rows_pb2.Made:
        if self._envs:
            raise ValueError("make: expected rows that are not made, got them made")
        self._kwargs = json.loads(make.kwargs_json or "{}")
        self._task = make.task_method, json.loads(make.task_argument_json or "null")
        try:
            for _ in range(make.row_count):
                self._envs.append(self._made_env())
            first = self._envs[0]
            assert first is not None
            self._observations, self._actions = Values(first.observation_space), Values(first.action_space)
            self._columns = self._observations.empty_columns(make.row_count)
            self._are_in_real_time = isinstance(first, RealTime)
            return rows_pb2.Made(
                observation_space=space_message(first.observation_space),
                action_space=space_message(first.action_space),
                max_episode_steps=first.max_episode_steps,
                is_nondeterministic=first.is_nondeterministic,
            )
        except Exception:
            self.close()
            self._envs.clear()
            raise

    def _made_env(self) -> Environment:
        env = self._make(self._kwargs)
        if self._task[0]:
            env.set_task(*self._task)
        return env

    def _reset(self, reset: rows_pb2.Reset) -> rows_pb2.Results:
        self._check_rows(reset.rows)
        if len(reset.seeds) != len(reset.rows):
            raise ValueError("seeds: expected one for each row, got {}".format(len(reset.seeds)))
        options, results, infos = json.loads(reset.options_json or "null"), rows_pb2.Results(), _Infos(len(reset.rows))
        for position, (row, seed) in enumerate(zip(reset.rows, reset.seeds)):
            try:
                env = self._envs[row]
                if env is None:
                    env = self._envs[row] = self._made_env()
                observation, info = env.reset(seed, options)
                self._observations.store(observation, self._columns, row)
                infos.add(position, info)
            except Exception as error:
                self._fail(row, position, error, results)
        self._write(results, reset.rows, infos)
        return results

    def _step(self, step: rows_pb2.Step, results: rows_pb2.Results) -> None:
        self._check_rows(step.rows)
        rows = step.rows or range(len(self._envs))
        actions = self._actions.rows(self._action_columns(step.actions, len(rows)))
        infos, rewards = _Infos(len(rows)), [0.0] * len(rows)
        terminated, truncated = [False] * len(rows), [False] * len(rows)
        store, columns = self._observations.store, self._columns
        if self._are_in_real_time:  # else a row would wait for the one before it
            for row, action in zip(rows, actions):
                env = self._envs[row]
                if isinstance(env, RealTime):
                    env.begin_step(action)
        for position, (row, action) in enumerate(zip(rows, actions)):
            try:
                env = self._envs[row]
                if env is None:
                    raise ValueError("row: expected one that is reset, got one that has failed")
                outcome = env.end_step() if isinstance(env, RealTime) else env.step(action)
                observation, reward, terminated[position], truncated[position], info = outcome
                rewards[position] = float(reward)
                store(observation, columns, row)
                if info:
                    infos.add(position, info)
            except Exception as error:
                terminated[position] = truncated[position] = False
                self._fail(row, position, error, results)
        results.rewards.extend(rewards)
        results.terminated.extend(map(bool, terminated))
        results.truncated.extend(map(bool, truncated))
        self._write(results, step.rows, infos)

    def _check_rows(self, rows: Sequence[int]) -> None:
        if not self._envs:
            raise ValueError("request: expected make first")
        if any(after <= before for before, after in zip(rows, rows[1:])) or (rows and rows[-1] >= len(self._envs)):
            raise ValueError("rows: expected rising numbers below {}, got {}".format(len(self._envs), list(rows)))

    def _action_columns(self, tensors: Iterable[Any], num_rows: int) -> List[np.ndarray]:
        columns = [array_of(each.tensor) for each in tensors]
        expected = [((num_rows, *leaf.shape), leaf.dtype) for leaf in self._actions.leaves]
        got = [(column.shape, column.dtype.newbyteorder("=")) for column in columns]
        if got != expected:
            raise ValueError("actions: expected {}, got {}".format(expected, got))
        return columns

    def _write(self, results: rows_pb2.Results, rows: Sequence[int], infos: _Infos) -> None:
        """Write observations and infos of rows, all of them if none are named."""
        columns = [column[list(rows)] for column in self._columns] if rows else self._columns
        results.observations.extend(self._observations.messages(columns))
        results.infos.extend(infos.messages())

    def _fail(self, row: int, position: int, error: Exception, results: rows_pb2.Results) -> None:
        results.failures.add(position=position, text=_described(error))
        self._break(row)

    def _break(self, row: int) -> None:
        env, self._envs[row] = self._envs[row], None
        try:
            if env is not None:
                env.close()
        except Exception:  # nobody uses it any more
            pass


class _Infos:
    """Infos of rows, gathered by name."""

    def __init__(self, num_rows: int) -> None:
        self._num_rows = num_rows
        self._found: Dict[str, Tuple[List[int], List[Any]]] = {}

    def add(self, position: int, infos: Mapping[str, Any]) -> None:
        """Add the infos of the row at a position; names that are no texts are left out."""
        for name, value in infos.items():
            if isinstance(name, str):
                positions, values = self._found.setdefault(name, ([], []))
                positions.append(position)
                values.append(value)

    def messages(self) -> Iterator[rows_pb2.Info]:
        """Yield them as messages: as arrays where all values have one shape and type, else as JSON."""
        for name, (positions, values) in self._found.items():
            message = rows_pb2.Info(name=name, positions=positions if len(positions) < self._num_rows else ())
            try:
                arrays = list(map(np.asarray, values))
                if len({(array.shape, array.dtype) for array in arrays}) > 1:
                    raise ValueError
                message.tensor.CopyFrom(tensor_message(np.stack(arrays)))
            except ValueError:
                try:
                    message.json.texts.extend(json.dumps(value, default=_plain, allow_nan=False) for value in values)
                except (TypeError, ValueError):  # nobody else could read it
                    continue
            yield message


def _plain(value: Any) -> Any:
    """Return numpy's arrays and numbers as JSON has them; raise TypeError for anything else."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    raise TypeError


def _described(error: Exception) -> str:
    return "{}: {}".format(type(error).__name__, error)[:1000]
