"""Hosts of rows: environments that a process of its own has, which a worker resets and steps over a connection."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import gymnasium
import numpy as np

from rollserve_server.envs.columns import assemble_rows, store_observation
from rollserve_server.envs.host_starts import HostStart, is_adapted, is_connected, is_dialled, names_host
from rollserve_server.envs.hosts.connection import HostConnection, HostError, HostLostError
from rollserve_server.envs.hosts.opening import open_connected, open_dialled, start_host
from rollserve_server.envs.hosts.relays import current_relay
from rollserve_server.envs.leaves import leaves_of_space
from rollserve_server.envs.plain_spaces import space_from_proto
from rollserve_server.envs.profiles import ProfileEnv
from rollserve_server.errors import InvalidValueError
from rollserve_wire.errors import mismatch
from rollserve_wire.reasons import Reason
from rollserve_wire.rows.v1 import rows_pb2 as pb
from rollserve_wire.tensors import named_tensors_to_proto, tensor_from_proto

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rollserve_wire.environments import EnvSpec

__all__ = ["Host", "HostResults", "HostRow", "check_hosted", "host_of", "is_hosted"]

_V = TypeVar("_V")

_NUM_OPENINGS = 3
"""How often rows are asked for, if hosts are lost before they are made, until an update fails."""
_MAX_INFO_BYTES = 64 << 20
"""Bytes of infos, and of all else beside observations, in a message of a host."""


class HostResults(NamedTuple):
    """What a step has led to in K rows.

    Attributes:
        observations: (K, *O) for each leaf.
        rewards: (K,) float64.
        terminated: (K,) bool.
        truncated: (K,) bool.
        infos: infos of rows that have any, by position.
        failures: what has failed, by position.
    """

    observations: Sequence[np.ndarray]
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    infos: Mapping[int, Mapping[str, Any]]
    failures: Mapping[int, str]


class Registration(NamedTuple):
    """What gymnasium's registry would know of an environment, which takes no ids such as `rows://HOST:PORT`."""

    max_episode_steps: int | None
    nondeterministic: bool


class Host:
    """The rows of a host: M environments, over a connection that is opened again where it is lost.

    Attributes:
        observation_space, action_space: the spaces of a row.
        action_leaves: leaves of the action space.
        registration: what gymnasium's registry would know of the environment.
    """

    def __init__(self, spec: EnvSpec, num_rows: int, open_connection: Callable[[bool], HostConnection]) -> None:
        """Open the connection, and have the rows made.

        Args:
            spec: the environment.
            num_rows: M.
            open_connection: opens the connection, again or for the first time; raises HostError.

        Raises:
            InvalidValueError: there is no such host, it refuses to make the rows, or its spaces have no leaves.
        """
        self._spec, self._num_rows, self._open_connection = spec, num_rows, open_connection
        # The rows that were reset over the present connection.
        self._reset_rows: set[int] = set()
        self._connection: HostConnection | None = None
        self._hello: pb.Hello | None = None
        self._made: pb.Made | None = None
        try:
            made = self._open_first()
        except HostError as error:
            field = "kwargs_json" if spec.kwargs and self._connection is not None else "id"
            self.close()
            raise InvalidValueError(f"{spec.id}: {error}", reason=Reason.ENV_REFUSED, field=field) from error
        try:
            self.observation_space = space_from_proto(made.observation_space)
            self.action_space = space_from_proto(made.action_space)
            self._leaves = leaves_of_space(self.observation_space, "observations")
            self.action_leaves = leaves_of_space(self.action_space, "actions", texts=False)
        except (ValueError, InvalidValueError) as error:
            self.close()
            text = f"{spec.id}: its host has {error}"
            raise InvalidValueError(text, reason=Reason.ENV_REFUSED, field="id") from error
        self._made = made
        self.registration = Registration(made.max_episode_steps or None, made.is_nondeterministic)
        self._set_bound()

    def row(self, row: int) -> HostRow:
        """Return a row, as an environment of its own; the host closes with the only one."""
        return HostRow(self, row, closes=self._num_rows == 1)

    def reset(self, seeds: Mapping[int, int]) -> Mapping[int, tuple[Any, Mapping[str, Any]] | str]:
        """Begin episodes with these seeds, by row; return observation and infos by row, or what has failed.

        Raises:
            HostError: the host is lost, and cannot be opened again, or answers something invalid.
        """
        rows = sorted(seeds)
        if self._connection is None:
            self._open()
        request = pb.Reset(rows=rows, seeds=[seeds[row] for row in rows])
        if self._spec.reset_options:
            request.options_json = json.dumps(dict(self._spec.reset_options))
        results = self._results(pb.Request(reset=request), len(rows), is_step=False)
        values = assemble_rows(self.observation_space, map(np.ndarray.copy, results.observations), len(rows))
        self._reset_rows.update(rows)
        return {
            row: results.failures.get(position) or (values[position], results.infos.get(position, {}))
            for position, row in enumerate(rows)
        }

    def step(self, rows: Sequence[int], actions: Sequence[np.ndarray]) -> HostResults:
        """Step rows with the actions of these, (K, *A) for each leaf.

        Raises:
            HostError: the host is lost, or answers something invalid. Its rows have to be reset.
        """
        if not self._reset_rows.issuperset(rows):
            raise HostLostError("the host was lost after the reset of a row")
        is_all = len(rows) == self._num_rows
        tensors = {leaf.name: column for leaf, column in zip(self.action_leaves, actions, strict=True)}
        request = pb.Step(rows=() if is_all else rows, actions=named_tensors_to_proto(tensors))
        return self._results(pb.Request(step=request), len(rows), is_step=True)

    def close(self) -> None:
        """Close the connection, and with it what the host has made."""
        self._lose()

    def _open_first(self) -> pb.Made:
        """Open the connection for the first time; again if the host is lost before its rows are made."""
        for _ in range(_NUM_OPENINGS - 1):
            with contextlib.suppress(HostLostError):
                return self._open()
        return self._open()

    def _open(self) -> pb.Made:
        """Open the connection; return the environment, which has to be the one that it was."""
        self._connection = self._open_connection(self._made is not None)
        self._check_versions(self._connection.hello)
        spec = self._spec
        request = pb.Make(row_count=self._num_rows)
        if spec.kwargs:
            request.kwargs_json = json.dumps(dict(spec.kwargs))
        if spec.task is not None:
            request.task_method, request.task_argument_json = spec.task.method, json.dumps(spec.task.argument)
        made = self._asked(pb.Request(make=request), "made").made
        if self._made is not None:
            self._set_bound()
            if made != self._made:
                self._lose()
                raise HostError(f"made: {mismatch('the environment that the host had before', 'another one')}")
        return made

    def _check_versions(self, hello: pb.Hello) -> None:
        """Raise HostError if the host has other versions than before."""
        if self._hello is not None and hello.versions != self._hello.versions:
            self._lose()
            expected, got = (str(dict(sorted(each.versions.items()))) for each in (self._hello, hello))
            raise HostError(f"hello.versions: {mismatch(f'{expected}, as before', got)}")
        self._hello = hello

    def _set_bound(self) -> None:
        row_bytes = sum(leaf.dtype.itemsize * int(np.prod(leaf.shape)) for leaf in self._leaves)
        if self._connection is not None:
            self._connection.max_bytes = self._num_rows * row_bytes + _MAX_INFO_BYTES

    def _asked(self, request: pb.Request, kind: str) -> pb.Response:
        if self._connection is None:
            raise HostLostError("the host is lost")
        try:
            return self._connection.ask(request, kind)
        except HostLostError:
            self._lose()
            raise

    def _results(self, request: pb.Request, num_rows: int, *, is_step: bool) -> HostResults:
        """Return the results of a request for so many rows; without rewards and flags unless it `is_step`."""
        results = self._asked(request, "results").results
        num_outcomes = num_rows if is_step else 0
        try:
            return HostResults(
                self._observations(results, num_rows),
                np.array(_as_many("rewards", results.rewards, num_outcomes), np.float64),
                np.array(_as_many("terminated", results.terminated, num_outcomes), np.bool_),
                np.array(_as_many("truncated", results.truncated, num_outcomes), np.bool_),
                _infos(results, num_rows),
                _failures(results, num_rows),
            )
        except HostLostError:  # what comes next cannot be trusted
            self._lose()
            raise

    def _lose(self) -> None:
        self._reset_rows.clear()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _observations(self, results: pb.Results, num_rows: int) -> list[np.ndarray]:
        """Return the observations of a message, (K, *O) for each leaf."""
        columns, columns_sent = [], _as_many("observations", results.observations, len(self._leaves))
        for leaf, named in zip(self._leaves, columns_sent, strict=True):
            try:
                column = tensor_from_proto(named.tensor)
            except ValueError as error:
                raise HostLostError(f"observations[{named.name!r}]: {error}") from error
            wanted, found = (leaf.name, leaf.dtype, (num_rows, *leaf.shape)), (named.name, column.dtype, column.shape)
            if wanted != found:
                expected, got = ("{!r}, {} of shape {}".format(*each) for each in (wanted, found))
                raise HostLostError(f"observations: {mismatch(expected, got)}")
            columns.append(column)
        return columns


class HostRow(gymnasium.Env[Any, Any]):
    """A row of a host, as an environment of its own."""

    def __init__(self, host: Host, row: int, *, closes: bool) -> None:
        self._host, self._row, self._closes = host, row, closes
        self.observation_space, self.action_space = host.observation_space, host.action_space
        self.spec = host.registration  # type: ignore[assignment]  # all that is read of one

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode, with the options of the host's spec; raise HostError if that fails."""
        found = self._host.reset({self._row: seed or 0})[self._row]
        if isinstance(found, str):
            raise HostError(found)
        observation, infos = found
        return observation, dict(infos)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Make a step; raise HostError if that fails."""
        host = self._host
        columns = [np.zeros((1, *leaf.shape), leaf.dtype) for leaf in host.action_leaves]
        store_observation(action, host.action_leaves, columns, 0)
        results = host.step((self._row,), columns)
        if results.failures:
            raise HostError(results.failures[0])
        (observation,) = assemble_rows(host.observation_space, map(np.ndarray.copy, results.observations), 1)
        reward, terminated, truncated = (
            column[0].item() for column in (results.rewards, results.terminated, results.truncated)
        )
        return observation, reward, terminated, truncated, dict(results.infos.get(0, {}))

    def close(self) -> None:
        """Close the host, if this is its only row."""
        if self._closes:
            self._host.close()


def is_hosted(spec: EnvSpec) -> bool:
    """Whether a host has an environment, and no worker makes it."""
    return names_host(spec.id) or (isinstance(spec, ProfileEnv) and spec.host is not None)


def check_hosted(spec: EnvSpec) -> None:
    """Raise InvalidValueError if an environment asks its host for what only those have that workers make."""
    for name, value in (("wrappers", spec.wrappers), ("multi_agent", spec.multi_agent)):
        if value:
            expected = "none for an environment of a host, which wraps it itself"
            raise InvalidValueError.of(name, expected=expected, got=repr(value))
    if spec.vectorization not in (None, "rows"):
        expected = "'rows', because a host steps its rows as they are asked for"
        raise InvalidValueError.of("vectorization", expected=expected, got=repr(spec.vectorization))


def host_of(spec: EnvSpec, num_rows: int) -> Host | None:
    """Return a host of an environment's rows, opened; None for an environment that the worker makes itself.

    Raises:
        InvalidValueError: there is no such host, or it refuses the environment.
    """
    start = spec.host if isinstance(spec, ProfileEnv) else None
    if start is None and is_adapted(spec.id):
        start = HostStart()
    if start is not None:
        return Host(spec, num_rows, lambda _: start_host(start, spec.id))
    if is_dialled(spec.id):
        return Host(spec, num_rows, lambda is_again: open_dialled(spec.id, waits=is_again))
    if is_connected(spec.id):
        relay = current_relay()
        return Host(spec, num_rows, lambda is_again: open_connected(spec.id, relay, waits=is_again))
    return None


def _as_many(name: str, values: Sequence[_V], num_values: int) -> Sequence[_V]:
    """Return values of a message; raise HostLostError unless they are so many."""
    if len(values) != num_values:
        raise HostLostError(f"{name}: {mismatch(f'{num_values} values', len(values))}")
    return values


def _infos(results: pb.Results, num_rows: int) -> dict[int, dict[str, Any]]:
    """Return the infos of a message, by position; raise HostLostError if they do not fit."""
    infos: dict[int, dict[str, Any]] = {}
    for info in results.infos:
        positions = info.positions or range(num_rows)
        try:
            values: Sequence[Any] = (
                list(tensor_from_proto(info.tensor).copy())
                if info.HasField("tensor")
                else [json.loads(text) for text in info.json.texts]
            )
        except (ValueError, TypeError, RecursionError) as error:
            raise HostLostError(f"infos[{info.name!r}]: {error}") from error
        if len(values) != len(positions) or max(positions, default=-1) >= num_rows:
            raise HostLostError(f"infos[{info.name!r}]: {mismatch(f'{len(positions)} values of rows', len(values))}")
        for position, value in zip(positions, values, strict=True):
            infos.setdefault(position, {})[info.name] = value
    return infos


def _failures(results: pb.Results, num_rows: int) -> dict[int, str]:
    """Return what has failed, by position; raise HostLostError for a position that no row has."""
    failures = {failure.position: failure.text or "the environment failed" for failure in results.failures}
    if max(failures, default=-1) >= num_rows:
        raise HostLostError(f"failures: {mismatch(f'positions below {num_rows}', max(failures))}")
    return failures
