"""Common part of both samplers: everything except the waiting."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack

from rollserve._calls import requests
from rollserve._calls.base_round_stream import StreamParts
from rollserve._calls.contact import Contact
from rollserve._calls.evaluations import EvaluationReader, PopulationReader
from rollserve._calls.own_versions import OwnVersions
from rollserve._calls.stream_requests import stream_spec
from rollserve._calls.stub import RawStreamsStub
from rollserve._calls.time_limits import TimeLimits
from rollserve._checks import check_seconds
from rollserve.errors import closed_error

if TYPE_CHECKING:
    import numpy as np

    from rollserve._calls.connection import Connection
    from rollserve._calls.resumption import Request
    from rollserve._calls.stream_requests import ApplyUpdate, WhenFull
    from rollserve.options import EvaluationOptions, SamplingOptions

__all__ = ["BaseSampler"]

_Stream = TypeVar("_Stream")
_Rounds = TypeVar("_Rounds")
_Result = TypeVar("_Result")


class BaseSampler(Generic[_Stream, _Rounds]):
    """A sampler on a server, whose streams are of one class for calls, and of one for rounds."""

    _channel: Any
    update_agent: Callable[..., Any]

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

    def stream(
        self,
        *,
        num_steps: int | None = None,
        fragment_length: int | None = None,
        soft_horizon: bool = False,
        row_step_count: int | None = None,
        total_num_steps: int | None = None,
        apply_update: ApplyUpdate = "next_fragment",
        max_policy_lag: int | None = None,
        max_ahead_steps: int | None = None,
        max_ahead_bytes: int | None = None,
        max_steps_per_version: int | None = None,
        when_full: WhenFull = "wait",
        buffer_rounds: int | None = None,
        **options: Unpack[SamplingOptions],
    ) -> _Rounds:
        """Sample on and on, round after round, while the trainer learns.

        Each round is what one `obtain_fragments` or `obtain_samples` would return, with the version of the agent that
        is current when the round begins. Updates of the agent do not stop the stream.

        >>> with sampler.stream(fragment_length=128, max_policy_lag=1) as stream:  # doctest: +SKIP
        ...     for batch in stream:
        ...         stream.update_agent(learn(batch))

        Args:
            num_steps: for rounds of whole episodes, the least number of steps in a round.
            fragment_length: for rounds of fragments, the number of steps of each row in a round.
            soft_horizon: as of `obtain_fragments`.
            row_step_count: for fragments, number of steps that each row has made in the sequence of `seed`, such as a
                round's `next_row_step_count`.
            total_num_steps: number of steps after which the stream ends with the round that reaches it; by default
                the caller ends the stream.
            apply_update: when an update of the agent takes effect: with the "next_fragment" (or round of whole
                episodes); for fragments at the "next_step", where the round ends for all rows, and the next one has the
                rest of the fragment; for whole episodes, "next_episode" is the default's other name.
            max_policy_lag: largest number of updates of the agent between a round's version and the current one.
                Rounds that are older when the server would send them, or when this client would hand them out, are
                discarded; the account counts them. By default any.
            max_ahead_steps: number of steps that the server may have sampled and not sent; by default one round.
            max_ahead_bytes: number of bytes that the server may have sampled and not sent; by default 64 MiB.
            max_steps_per_version: number of steps that are sampled with each version; then sampling waits for an
                update. As many as a round has is on-policy. By default any.
            when_full: whether sampling shall "wait" when as much is sampled and not sent as may be, or
                "drop_oldest", which the account counts.
            buffer_rounds: number of rounds to receive before the trainer asks for them; by default 0 with
                `max_policy_lag`, so that the lag is decided when the trainer asks, and 1 otherwise.
            options: see `rollserve.SamplingOptions`; not `policy_version`, `prefetch`, `blackhole` and `progress`. Each
                round has its own moments, in `batch.round`.

        Raises:
            TypeError: an argument of the wrong type, or both or neither of `num_steps` and `fragment_length`.
            InvalidArgumentError: an argument out of range.
        """
        if buffer_rounds is None:
            buffer_rounds = 1 if max_policy_lag is None else 0
        spec = stream_spec(
            self._name,
            self._reception,
            num_steps=num_steps,
            fragment_length=fragment_length,
            soft_horizon=soft_horizon,
            row_step_count=row_step_count,
            total_num_steps=total_num_steps,
            apply_update=apply_update,
            max_policy_lag=max_policy_lag,
            max_ahead_steps=max_ahead_steps,
            max_ahead_bytes=max_ahead_bytes,
            max_steps_per_version=max_steps_per_version,
            when_full=when_full,
            buffer_rounds=buffer_rounds,
            options=options,
        )
        self._own_versions.expect_in_call(spec.options)
        method, limits = self._opened(self._stub.StreamSamples), self._time_limits(options)
        parts = StreamParts(method, spec, buffer_rounds, limits, self._contact, self._own_versions, self.update_agent)
        return self._round_stream(parts)

    def _round_stream(self, parts: StreamParts) -> _Rounds:
        """Start a stream of rounds."""
        raise NotImplementedError

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
