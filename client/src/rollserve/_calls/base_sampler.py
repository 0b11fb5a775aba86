"""Common part of both samplers: everything except the waiting."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack

from rollserve._calls import requests
from rollserve._calls.contact import Contact
from rollserve._calls.evaluations import EvaluationReader, PopulationReader
from rollserve._calls.own_versions import OwnVersions
from rollserve._calls.stub import RawStreamsStub
from rollserve._calls.time_limits import TimeLimits
from rollserve._checks import check_seconds
from rollserve.errors import closed_error

if TYPE_CHECKING:
    import numpy as np

    from rollserve._calls.connection import Connection
    from rollserve._calls.resumption import Request
    from rollserve.options import EvaluationOptions, SamplingOptions

__all__ = ["BaseSampler"]

_Stream = TypeVar("_Stream")
_Result = TypeVar("_Result")


class BaseSampler(Generic[_Stream]):
    """A sampler on a server, whose streams are of one class."""

    _channel: Any

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._name = connection.sampler
        self._reception = connection.reception
        self._own_versions = OwnVersions(connection.shared)
        self._closed = False
        self._contact = Contact(connection)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._connection}{', closed' if self._closed else ''}>"

    def __reduce__(self) -> tuple[object, ...]:
        # Without the channel: a copy has a connection of its own, and counts as the same client.
        return type(self), (self._connection,), {"_own_versions": self._own_versions}

    @functools.cached_property
    def _stub(self) -> RawStreamsStub:
        return RawStreamsStub(self._channel, self._connection.metadata)

    def stream_samples(self, num_steps: int, **options: Unpack[SamplingOptions]) -> _Stream:
        """Stream what `obtain_samples` returns, batch by batch as it arrives.

        An episode may continue in the next batch.

        >>> with sampler.stream_samples(10_000) as stream:  # doctest: +SKIP
        ...     for batch in stream:
        ...         print(batch.num_steps)

        Args:
            num_steps: minimum number of steps; positive.
            options: see `rollserve.SamplingOptions`. With `blackhole`, the stream delivers no batch, and its `end`
                returns the account.
        """
        request = requests.samples_request(self._name, num_steps, self._reception, options)
        self._own_versions.expect_in_call(request.options)
        return self._stream(self._stub.ObtainSamples, request, options)

    def stream_fragments(
        self,
        num_steps: int,
        *,
        soft_horizon: bool = False,
        row_step_count: int | None = None,
        fraction_of_workers: float | None = None,
        fraction_of_samples: float | None = None,
        **options: Unpack[SamplingOptions],
    ) -> _Stream:
        """Stream what `obtain_fragments` returns, batch by batch as it arrives.

        A fragment may continue in the next batch. For the arguments, see `obtain_fragments`; for `blackhole`, see
        `stream_samples`.
        """
        request = requests.fragments_request(
            self._name,
            num_steps,
            soft_horizon,
            row_step_count,
            fraction_of_workers,
            fraction_of_samples,
            self._reception,
            options,
        )
        self._own_versions.expect_in_call(request.options)
        return self._stream(self._stub.ObtainSamples, request, options)

    def stream_exact_episodes(self, num_episodes_per_worker: int, **options: Unpack[SamplingOptions]) -> _Stream:
        """Stream what `obtain_exact_episodes` returns, batch by batch as it arrives.

        An episode may continue in the next batch.

        Args:
            num_episodes_per_worker: number of episodes of each worker; positive.
            options: see `stream_samples`.
        """
        request = requests.exact_episodes_request(self._name, num_episodes_per_worker, self._reception, options)
        self._own_versions.expect_in_call(request.options)
        return self._stream(self._stub.ObtainExactEpisodes, request, options)

    def _stream(self, method: Callable[..., Any], request: Request, options: SamplingOptions) -> _Stream:
        """Start a stream."""
        raise NotImplementedError

    def _evaluation_reader(
        self, num_episodes: int, return_episodes: bool, options: EvaluationOptions
    ) -> EvaluationReader:
        reader = EvaluationReader(self._name, num_episodes, return_episodes, self._reception, options)
        self._own_versions.expect_in_call(reader.request.options)
        return reader

    def _population_reader(
        self,
        parameters: Mapping[str, np.ndarray],
        num_episodes: int,
        same_episodes: bool,
        options: EvaluationOptions,
    ) -> PopulationReader:
        reader = PopulationReader(self._name, parameters, num_episodes, same_episodes, options)
        self._own_versions.expect_in_call(reader.request.options)
        return reader

    def _time_limits(self, options: SamplingOptions | EvaluationOptions) -> TimeLimits:
        timeout = options.get("timeout")
        return TimeLimits(self._connection.timeout if timeout is None else timeout, options.get("deadline"))

    def _answer_seconds(self, timeout: float | None) -> float:
        """Return the seconds that a call with a single answer may take; raises as `check_seconds`."""
        seconds = self._connection.timeout if timeout is None else timeout
        check_seconds("timeout", seconds, positive=True)
        return seconds

    def _opened(self, method: Callable[..., _Result]) -> Callable[..., _Result]:
        """Wrap a method so that it raises the client's own error once the sampler is closed."""

        def call(*arguments: Any, **options: Any) -> _Result:
            if self._closed:
                raise closed_error("sampler")
            try:
                return method(*arguments, **options)
            except ValueError:  # gRPC's error for a channel that was closed meanwhile
                if not self._closed:
                    raise
                raise closed_error("sampler") from None

        return call
