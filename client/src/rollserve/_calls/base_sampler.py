"""Common part of both samplers: everything except the waiting."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack

from rollserve._calls import requests
from rollserve._calls.stub import RawStreamsStub
from rollserve._calls.time_limits import TimeLimits
from rollserve._checks import check_seconds

if TYPE_CHECKING:
    from rollserve._calls.requests import Reception
    from rollserve._calls.resumption import Request
    from rollserve.options import EvaluationOptions, SamplingOptions

__all__ = ["BaseSampler"]

_Stream = TypeVar("_Stream")


class BaseSampler(Generic[_Stream]):
    """A sampler on a server, whose streams are of one class."""

    def __init__(self, channel: Any, *, sampler: str, timeout: float, reception: Reception) -> None:
        self._channel = channel
        self._stub = RawStreamsStub(channel)
        self._name = sampler
        self._timeout = timeout
        self._reception = reception
        self._closed = False

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
        return self._stream(self._stub.ObtainSamples, request, options)

    def stream_fragments(
        self,
        num_steps: int,
        *,
        soft_horizon: bool = False,
        row_step_count: int | None = None,
        fraction_of_workers: float | None = None,
        **options: Unpack[SamplingOptions],
    ) -> _Stream:
        """Stream what `obtain_fragments` returns, batch by batch as it arrives.

        A fragment may continue in the next batch. For the arguments, see `obtain_fragments`; for `blackhole`, see
        `stream_samples`.
        """
        request = requests.fragments_request(
            self._name, num_steps, soft_horizon, row_step_count, fraction_of_workers, self._reception, options
        )
        return self._stream(self._stub.ObtainSamples, request, options)

    def stream_exact_episodes(self, num_episodes_per_worker: int, **options: Unpack[SamplingOptions]) -> _Stream:
        """Stream what `obtain_exact_episodes` returns, batch by batch as it arrives.

        An episode may continue in the next batch.

        Args:
            num_episodes_per_worker: number of episodes of each worker; positive.
            options: see `stream_samples`.
        """
        request = requests.exact_episodes_request(self._name, num_episodes_per_worker, self._reception, options)
        return self._stream(self._stub.ObtainExactEpisodes, request, options)

    def _stream(self, method: Callable[..., Any], request: Request, options: SamplingOptions) -> _Stream:
        """Start a stream."""
        raise NotImplementedError

    def _time_limits(self, options: SamplingOptions | EvaluationOptions) -> TimeLimits:
        timeout = options.get("timeout")
        return TimeLimits(self._timeout if timeout is None else timeout, options.get("deadline"))

    def _answer_seconds(self, timeout: float | None) -> float:
        """Return the seconds that a call with a single answer may take; raises as `check_seconds`."""
        seconds = self._timeout if timeout is None else timeout
        check_seconds("timeout", seconds, positive=True)
        return seconds
